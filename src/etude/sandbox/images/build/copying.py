"""Copies files into a box for COPY and ADD, and decides their paths and owners.

A source folder is copied as its content. A target that ends in "/" or is an existing folder receives files under their
own names; any other target is the file's new name. Missing parent folders are made.
"""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Literal

from etude.sandbox.contract import Box, RequestRefused
from etude.sandbox.images.build.members import Member, Source, members_of_tar, pack
from etude.sandbox.images.build.patterns import Glob, is_pattern

MAX_BYTES = 900 << 20
"""Maximum bytes of one source of COPY --from, which is read from its box in one piece."""
MAX_FILES = 2_000_000
_CHUNK = 64 << 20
"""Maximum bytes of the copied data that are in memory at a time."""

Owner = tuple[int, int]


async def kind_at(box: Box, path: str) -> Literal["folder", "file", "nothing"]:
    try:
        await box.read_file(path, max_bytes=0)
    except IsADirectoryError:
        return "folder"
    except FileNotFoundError:
        return "nothing"
    except NotADirectoryError:
        raise ValueError(f"{path} leads through something that is no folder") from None
    except RequestRefused:
        pass  # The file is not empty.
    return "file"


async def copy_into(
    box: Box, sources: Sequence[Source], target: str, *, owner: Owner | None, mode: int | None, default_owner: Owner
) -> None:
    """Copy the sources to `target`, an absolute path. `owner` and `mode` replace those of the sources. Without `owner`,
    new parent folders and sources that bring no owners belong to `default_owner`."""
    path = target.rstrip("/") or "/"
    exists = await kind_at(box, path) == "folder"
    as_folder = exists or target.endswith("/")
    if len(sources) > 1 and not as_folder:
        raise ValueError(f"{len(sources)} sources need a folder as target: {path}/")
    # A new target folder gets the mode and owner of the source folder, if there is one, else the default.
    brings_top = any(source.has_top and source.is_folder for source in sources)
    make = not brings_top and (as_folder or any(source.is_folder for source in sources))
    base, members = await _missing_parents(box, path, owner or default_owner, with_last=make)
    for source in sources:
        theirs = owner or (None if source.owned else default_owner)
        folder = _below(path if source.is_folder or not as_folder else posixpath.join(path, source.name), base)
        for member in source.members:
            if member.path or not source.is_folder or not exists:
                members.append(_at_target(member, folder, theirs, mode))
        exists = exists or source.is_folder
    tars = pack(members, _CHUNK)
    while (tar := await asyncio.to_thread(next, tars, None)) is not None:
        await box.write_tree(base, tar, max_bytes=MAX_BYTES, max_files=MAX_FILES)


async def make_folder(box: Box, path: str, owner: Owner) -> bool:
    """Make a folder and its parents in the box; return False if it already exists."""
    found_kind = await kind_at(box, path)
    if found_kind == "file":
        raise ValueError(f"{path} is a file")
    if found_kind == "nothing":
        base, members = await _missing_parents(box, path, owner, with_last=True)
        for tar in pack(members, _CHUNK):
            await box.write_tree(base, tar)
    return found_kind == "nothing"


async def _missing_parents(box: Box, path: str, owner: Owner, *, with_last: bool) -> tuple[str, list[Member]]:
    """Return the deepest existing parent, and the folders to make below it (`with_last`: the path itself too)."""
    missing = [path] if with_last else []
    base = path if with_last else posixpath.dirname(path)
    while (found_kind := await kind_at(box, base)) == "nothing":
        if base != path:
            missing.append(base)
        base = posixpath.dirname(base)
    if found_kind == "file":
        raise ValueError(f"{base} is a file, and a folder is needed")
    missing = [folder for folder in missing if folder != base]
    return base, [Member(_below(folder, base), tarfile.DIRTYPE, 0o755, *owner) for folder in reversed(missing)]


def _at_target(member: Member, folder: str, owner: Owner | None, mode: int | None) -> Member:
    uid, gid = owner or (member.uid, member.gid)
    goal = posixpath.join(folder, member.goal) if member.kind == tarfile.LNKTYPE else member.goal
    kept = mode is None or member.kind == tarfile.SYMTYPE
    chosen = member.mode if kept or mode is None else mode
    path = posixpath.join(folder, member.path) if member.path else folder
    return replace(member, path=path, goal=goal, uid=uid, gid=gid, mode=chosen)


def _below(path: str, base: str) -> str:
    below = posixpath.relpath(path, base)
    return "" if below == "." else below


async def select_from_box(box: Box, pattern: str, open_files: ExitStack) -> list[Source]:
    """Return the files of one source of a COPY --from. Raises ValueError if there are none."""
    names = posixpath.normpath(f"/{pattern.lstrip('/')}")[1:].split("/")
    literal = next((at for at, name in enumerate(names) if is_pattern(name)), len(names))
    folder = "/" + "/".join(names[:literal])
    found_kind = await kind_at(box, folder)
    if found_kind == "nothing" or (found_kind == "file" and literal < len(names)):
        raise ValueError(f"there is no {pattern}")
    data = await box.read_tree(folder, max_bytes=MAX_BYTES, max_files=MAX_FILES)
    archive = open_files.enter_context(tarfile.open(fileobj=io.BytesIO(data)))  # noqa: SIM115
    members = list(members_of_tar(archive, folder))
    if literal == len(names):
        if found_kind == "file":
            members = [replace(members[0], path="")]
        return [Source(posixpath.basename(folder), members, owned=True)]
    found = _matching(members, [Glob(name) for name in names[literal:]])
    if not found:
        raise ValueError(f"nothing matches {pattern}")
    return found


def _matching(members: list[Member], patterns: list[Glob]) -> list[Source]:
    """Return the members that match the patterns (one per path component), each a source with all below it."""
    found: dict[str, Source] = {}
    for member in members:
        names = PurePosixPath(member.path).parts
        if len(names) < len(patterns) or not all(map(Glob.matches, patterns, names)):
            continue
        top = "/".join(names[: len(patterns)])
        source = found.setdefault(top, Source(names[len(patterns) - 1], [], owned=True))
        goal = member.goal.removeprefix(f"{top}/") if member.kind == tarfile.LNKTYPE else member.goal
        source.members.append(replace(member, path="/".join(names[len(patterns) :]), goal=goal))
    return [found[top] for top in sorted(found)]
