"""Decides which files of an image are removed before an agent sees it. Pure functions over a list of paths.

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
    """Absolute; a folder stands for everything below it."""
    reason: str


@dataclass(frozen=True)
class Leftover:
    where: str
    names: tuple[str, ...]
    reason: str
    untracked: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches a path up to the end of the rule's name: at any depth in the workspace, elsewhere only from the
        start."""
        start = "(?:.*?/)??" if self.where == "workdir" else ""
        names = "|".join(re.escape(name).replace(r"\*", "[^/]*") for name in self.names)
        return re.compile(f"{start}(?:{names})(?=/|$)", re.DOTALL)


@cache
def leftover_rules() -> tuple[Leftover, ...]:
    rows = tomllib.loads(resources.files(__package__).joinpath("leftovers.toml").read_text(encoding="utf-8"))
    return tuple(Leftover(**{**row, "names": tuple(row["names"])}) for row in rows["leftover"])


def find_leftovers(
    paths: Sequence[str], workdir: str, tracked: Collection[str] | None, needed: Collection[str] = ()
) -> list[Removed]:
    """The files to remove among these paths of an image. `tracked` are absolute paths, or None where the workspace is
    no repository. Build folders in `needed` stay."""
    doomed: dict[str, str] = {}
    for path in paths:
        if tracked and path in tracked:
            continue
        builds = tracked is not None and not any(is_below(path, folder) for folder in needed)
        for rule in leftover_rules():
            if (builds or not rule.untracked) and (found := _match(path, rule, workdir)):
                doomed[path] = found + "\0" + rule.reason
                break
    return _folded(doomed, paths)


def is_leftover(path: str) -> bool:
    """Whether this path, relative to a workspace without a repository, would be removed. Version control data counts
    too."""
    return ".git" in path.split("/") or bool(find_leftovers([f"/w/{path}"], "/w", None))


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _match(path: str, rule: Leftover, workdir: str) -> str:
    """The file or folder, at or above the path, that the rule names; empty if there is none."""
    base = _base(path, rule.where, workdir)
    found = base and rule.pattern.match(path, len(base))
    return path[: found.end()] if found else ""


def _base(path: str, where: str, workdir: str) -> str:
    """The folder, with a slash at the end, that the rule's names are relative to; empty where the rule does not apply
    to this path."""
    if path.startswith(f"{workdir}/"):
        return f"{workdir}/" if where == "workdir" else ""
    if where == "root":
        return "/"
    home = _HOME.match(path) if where == "home" else None
    return home[0] if home else ""


def _folded(doomed: dict[str, str], paths: Iterable[str]) -> list[Removed]:
    """Name a folder instead of its files where all of its files go."""
    below: Counter[str] = Counter()
    going: Counter[str] = Counter()
    named = {value.partition("\0")[0] for value in doomed.values()}
    for path in paths:
        for folder in folders_above(path):
            if folder in named:
                below[folder] += 1
                going[folder] += path in doomed
    found: dict[str, str] = {}
    for path, value in doomed.items():
        top, _, reason = value.partition("\0")
        found.setdefault(top if top == path or below[top] == going[top] else path, reason)
    return [Removed(path, reason) for path, reason in sorted(found.items())]


def folders_above(path: str) -> Iterator[str]:
    at = path.find("/", 1)
    while at != -1:
        yield path[:at]
        at = path.find("/", at + 1)
