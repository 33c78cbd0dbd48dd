"""Finds copies of the package under test in an image: installed by a package manager, or as archives. Files that the
workspace's repository tracks are not such copies.

An installed copy whose files equal those of the workspace reveals nothing and stays, because tests may import it; only
its bytecode is removed. A copy that differs may be the fixed release and is removed with its installation record.
Archives named like the package are removed too.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence

from etude.tasks.seal.leftovers import Removed, is_below
from etude.tasks.seal.root import Root, members

_INSTALLED = re.compile(r"(.*/(?:site-packages|dist-packages|node_modules))/((?:@[^/]+/)?[^/]+)")
_ARCHIVE = re.compile(r"(.+?)-v?\d[^/]*\.(?:whl|tar\.(?:gz|bz2|xz)|tgz|zip|egg|gem|crate|jar|conda)$")
_RECORD = re.compile(r"(.+?)(?:-\d[^/]*)?\.(?:dist-info|egg-info|egg-link)$")
_EDITABLE = re.compile(r"\.pth$|\.egg-link$|/__editable__[^/]*\.py$|_editable_loader\.py$")
_NO_PACKAGES = frozenset(
    ("tests", "test", "docs", "doc", "examples", "benchmarks", "scripts", "tools", "build", "dist")
)
_COMPILED = (".pyc", ".pyo", ".so", ".pyd", ".node")
"""Suffixes of files built on installation: the workspace has no counterpart to compare them with."""


async def find_copies(root: Root, paths: Sequence[str], workdir: str, tracked: Collection[str] | None) -> list[Removed]:
    """Return what may show the fixed version of the package under test: installed copies that differ from the
    workspace, with their records; the bytecode of equal copies; archives of the package. Files in `tracked` do not
    count as copies; `tracked` is None if there is no repository, or its files cannot be listed."""
    names = await package_names(root, paths, workdir)
    if not names:
        return []
    installed = {
        match[0]
        for path in paths
        if (match := _INSTALLED.match(path))
        and _normalised_name(match[2]) in names
        and not _is_own_package(path, workdir, tracked)
    }
    differing = [place for place in sorted(installed) if not await _equals_workspace(root, place, paths, workdir)]
    kept = tuple(f"{place}/" for place in installed.difference(differing))
    caches = {path.partition("/__pycache__/")[0] for path in paths if path.startswith(kept) and "/__pycache__/" in path}
    packages = {_normalised_name(place.rpartition("/")[2]) for place in differing}
    found = [Removed(place, "an installed copy of the package under test, of other content") for place in differing]
    found += [Removed(f"{place}/__pycache__", "bytecode of an installed copy") for place in sorted(caches)]
    for path in paths:
        if tracked is not None and path in tracked:
            continue
        name = path.rpartition("/")[2]
        if (archive := _ARCHIVE.match(name)) and _normalised_name(archive[1]) in names:
            found.append(Removed(path, "an archive of the package under test"))
    records = {match[0] for path in paths if (match := _INSTALLED.match(path)) and _record_of(match[2]) in packages}
    return found + [Removed(place, "the record of a removed copy") for place in sorted(records)]


async def editable_folders(root: Root, paths: Sequence[str], workdir: str) -> set[str]:
    """Return what an editable install of the package loads from the workspace: the paths in its hook files (such as
    .pth files), and the .egg-info folders."""
    hooks = [path for path in paths if not is_below(path, workdir) and _EDITABLE.search(path)]
    text = "\n".join([await _text(root, path) for path in hooks])
    if workdir not in text:
        return set()
    named = {place.rstrip("/") for place in re.findall(re.escape(workdir) + r"/[^\s'\"\]:,]+", text)}
    records = {path.rpartition("/")[0] for path in paths if is_below(path, workdir) and ".egg-info/" in path}
    return named | records


async def package_names(root: Root, paths: Iterable[str], workdir: str) -> set[str]:
    """Return the normalised names of the workspace's package, as its project files and import folders give them."""
    names: set[str] = set()
    for path in paths:
        if not is_below(path, workdir):
            continue
        steps = path.removeprefix(f"{workdir}/").removeprefix("src/").split("/")
        if len(steps) == 2 and steps[1] == "__init__.py" and steps[0] not in _NO_PACKAGES:
            names.add(_normalised_name(steps[0]))
    for file, name_of in _PROJECT_FILES.items():
        if name := name_of(await _text(root, f"{workdir}/{file}")):
            names.add(_normalised_name(name))
    return names


async def _equals_workspace(root: Root, place: str, paths: Iterable[str], workdir: str) -> bool:
    """Return whether every file of the copy at `place`, except compiled ones, is the same in the workspace."""
    name = place.rpartition("/")[2]
    homes = [folder for folder in (f"{workdir}/{name}", f"{workdir}/src/{name}", workdir) if folder != place]
    there = set(paths)
    if place in there:
        ours = [await root.read(home) for home in homes if home in there]
        return await root.read(place) in ours
    async for piece in root.pieces(place):
        if piece.unread:
            return False
        for info, content in members(piece.tar) if piece.tar else ():
            if not info.isfile() or info.name.endswith(_COMPILED):
                continue
            inside = f"{piece.folder}/{info.name}".removeprefix(f"{place}/")
            counterpart = next((f"{home}/{inside}" for home in homes if f"{home}/{inside}" in there), None)
            if counterpart is None or await root.read(counterpart) != content:
                return False
    return True


def _is_own_package(path: str, workdir: str, tracked: Collection[str] | None) -> bool:
    """Return whether a path belongs to the repository itself, such as to a package of a monorepo that a symbolic link
    points to. Such a package is no copy."""
    return is_below(path, workdir) and (tracked is None or path in tracked)


def _normalised_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.rpartition("/")[2].removesuffix(".py").lower())


def _record_of(name: str) -> str:
    match = _RECORD.match(name)
    return _normalised_name(match[1]) if match else ""


def _of_pyproject(text: str) -> str:
    try:
        project = tomllib.loads(text)
        found = project.get("project", {}).get("name") or project.get("tool", {}).get("poetry", {}).get("name")
    except (tomllib.TOMLDecodeError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def _of_package_json(text: str) -> str:
    try:
        found = json.loads(text).get("name")
    except (ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def _assigned(text: str) -> str:
    match = re.search(r"^\s*name\s*=\s*['\"]?([A-Za-z0-9._-]+)", text, re.MULTILINE)
    return match[1] if match else ""


_PROJECT_FILES = {
    "pyproject.toml": _of_pyproject,
    "package.json": _of_package_json,
    "setup.cfg": _assigned,
    "setup.py": _assigned,
    "Cargo.toml": _assigned,
}


async def _text(root: Root, path: str) -> str:
    return (await root.read(path)).decode("utf-8", "replace")
