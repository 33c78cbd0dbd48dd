"""Decides which files of an image are removed before an agent sees it, with pure functions over a list of paths.

Invariant: a path that the workspace's repository tracks is never removed.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

_HOME = re.compile(r"/root/|/home/[^/]+/")


@dataclass(frozen=True, slots=True)
class Removed:
    path: str
    """Absolute path in the image. A folder stands for everything below it."""
    reason: str


@dataclass(frozen=True)
class LeftoverRule:
    where: str
    names: tuple[str, ...]
    reason: str
    untracked: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the part of a path after the folder where the rule looks, up to and including one of the rule's
        names. In the workspace the name may be at any depth; below a home folder or the root it must come first."""
        start = "(?:.*?/)??" if self.where == "workdir" else ""
        names = "|".join(re.escape(name).replace(r"\*", "[^/]*") for name in self.names)
        return re.compile(f"{start}(?:{names})(?=/|$)", re.DOTALL)


@cache
def leftover_rules() -> tuple[LeftoverRule, ...]:
    rows = tomllib.loads(resources.files(__package__).joinpath("leftovers.toml").read_text(encoding="utf-8"))
    return tuple(LeftoverRule(**{**row, "names": tuple(row["names"])}) for row in rows["leftover"])


def find_leftovers(
    paths: Sequence[str], workdir: str, tracked: Collection[str] | None, needed: Collection[str] = ()
) -> list[Removed]:
    """Return what the rules of leftovers.toml remove of an image's files. Files in `tracked` are never removed;
    `tracked` is None if there is no repository, or its files cannot be listed. Build folders in `needed` stay, because
    an editable install loads from them."""
    to_remove: dict[str, str] = {}
    for path in paths:
        if tracked and path in tracked:
            continue
        builds = tracked is not None and not any(is_below(path, folder) for folder in needed)
        for rule in leftover_rules():
            if (builds or not rule.untracked) and (found := _match(path, rule, workdir)):
                to_remove[path] = found + "\0" + rule.reason
                break
    return _merge_folders(to_remove, paths)


def is_leftover(path: str) -> bool:
    """Return whether sealing would remove this path of a workspace without a repository. `.git` counts as well."""
    return ".git" in path.split("/") or bool(find_leftovers([f"/w/{path}"], "/w", None))


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _match(path: str, rule: LeftoverRule, workdir: str) -> str:
    """Return what the rule removes for this path: the path itself, a folder above it, or nothing (an empty string)."""
    base = _base(path, rule.where, workdir)
    found = base and rule.pattern.match(path, len(base))
    return path[: found.end()] if found else ""


def _base(path: str, where: str, workdir: str) -> str:
    """Return the folder below which a rule looks for its names, with a slash at the end. Empty if the rule does not
    apply to the path."""
    if path.startswith(f"{workdir}/"):
        return f"{workdir}/" if where == "workdir" else ""
    if where == "root":
        return "/"
    home = _HOME.match(path) if where == "home" else None
    return home[0] if home else ""


def _merge_folders(to_remove: dict[str, str], paths: Iterable[str]) -> list[Removed]:
    """Return what to remove from the image, with reasons. If a rule names a folder and all files of the folder are to
    be removed, one entry for the folder replaces those of its files. `to_remove` maps each file to what its rule names
    (the file or a folder above it) and the rule's reason."""
    below: Counter[str] = Counter()
    going: Counter[str] = Counter()
    named = {value.partition("\0")[0] for value in to_remove.values()}
    for path in paths:
        for folder in folders_above(path):
            if folder in named:
                below[folder] += 1
                going[folder] += path in to_remove
    found: dict[str, str] = {}
    for path, value in to_remove.items():
        top, _, reason = value.partition("\0")
        found.setdefault(top if top == path or below[top] == going[top] else path, reason)
    return [Removed(path, reason) for path, reason in sorted(found.items())]


def folders_above(path: str) -> Iterator[str]:
    at = path.find("/", 1)
    while at != -1:
        yield path[:at]
        at = path.find("/", at + 1)
