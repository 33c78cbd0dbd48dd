"""Applies an agent's changes to a folder that may have changed since the agent started.

The changes are first planned, as one step per file, and then written. Invariant: planning writes nothing. Each step
holds the file's new contents and those that the folder must still have, so that newer contents are never overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from etude.harness.background.merge import merge
from etude.harness.editing.apply import ApplyConflict, write_changes, write_obstacle
from etude.harness.editing.diff import as_text, binary_changes, unified_diff
from etude.harness.workspaces.workspace import TOO_LARGE

Changes = Mapping[str, tuple[bytes | None, bytes | None]]
"""Maps each path that an agent changed to the file's contents before and after; None where there is no file."""


class Fit(StrEnum):
    """Whether an agent's version of a file can be written to the user's folder, where the file may have changed."""

    WRITES = "writes"
    """The user has not changed the file since the agent started, so the agent's version replaces it."""
    THERE = "there"
    MERGES = "merges"
    """The user and the agent both changed the file, and their changes can be merged."""
    CONFLICTS = "conflicts"


@dataclass(frozen=True, slots=True)
class Step:
    path: str
    fit: Fit
    found: bytes | None = None
    """The file's contents in the folder now; None if there is no file."""
    result: bytes | None = None
    """The file's contents after the step (None: deleted); for a conflict, the agent's version."""
    why: str = ""
    """Why the agent's version of the file cannot be written, if `fit` is CONFLICTS; otherwise empty."""


def plan_steps(folder: Path, changes: Changes, only: Collection[str] = ()) -> list[Step]:
    """Plan one step per changed file, or only for the paths in `only`. Files too large to read are left out."""
    unknown = sorted(set(only) - changes.keys())
    if unknown:
        raise ApplyConflict(
            f"the agent did not change {', '.join(unknown)}: expected some of {', '.join(sorted(changes)) or 'nothing'}"
        )
    if not folder.is_dir():
        raise ApplyConflict(f"{folder} does not exist any more, so the changes cannot be written")
    chosen = sorted(path for path, (_, now) in changes.items() if now != TOO_LARGE and (not only or path in only))
    return [_step(folder, path, *changes[path]) for path in chosen]


def _step(folder: Path, path: str, before: bytes | None, now: bytes | None) -> Step:
    if obstacle := write_obstacle(folder, path):
        return Step(path, Fit.CONFLICTS, None, now, obstacle)
    target = folder / path
    found = target.read_bytes() if target.is_file() else None
    if found == now:
        return Step(path, Fit.THERE, found, now)
    if found == before:
        return Step(path, Fit.WRITES, found, now)
    if found is None:
        return Step(path, Fit.CONFLICTS, found, now, "was deleted meanwhile")
    if now is None:
        return Step(path, Fit.CONFLICTS, found, now, "was changed meanwhile, and the agent deletes it")
    if before is None:
        return Step(path, Fit.CONFLICTS, found, now, "was created meanwhile, with other contents")
    if None in (as_text(before), as_text(now), as_text(found)):
        return Step(path, Fit.CONFLICTS, found, now, "was changed meanwhile, and is not a text file")
    merged = merge(before, found, now)
    if merged is None:
        return Step(path, Fit.CONFLICTS, found, now, "was changed meanwhile in the same lines")
    return Step(path, Fit.MERGES, found, merged)


def preview(planned: Collection[Step]) -> str:
    """Return a diff from the folder's contents to the planned ones. For a conflict, it shows the agent's version."""
    before = {step.path: step.found for step in planned}
    after = {step.path: step.result for step in planned}
    old = {path: data for path, data in before.items() if data is not None}
    new = {path: data for path, data in after.items() if data is not None}
    return unified_diff(old, new) + binary_changes(old, new)


def write_steps(folder: Path, planned: Collection[Step], *, merging: bool) -> list[str]:
    """Write all planned steps and return their paths, including those of files that were already up to date. Raises
    ApplyConflict, before anything is written, if a step conflicts or, without `merging`, must be merged."""
    if conflicts := [f"{step.path} {step.why}" for step in planned if step.fit is Fit.CONFLICTS]:
        raise ApplyConflict(
            f"nothing was written: {'; '.join(conflicts)}; apply only other files, undo your change, or let the agent "
            "redo its work on the current files: `etude agents resume --rebase`"
        )
    merged = [step.path for step in planned if step.fit is Fit.MERGES]
    if merged and not merging:
        raise ApplyConflict(
            f"nothing was written: {', '.join(merged)} changed meanwhile in other lines; --dry-run shows what a merge "
            "would write, --merge writes it"
        )
    writing = [step for step in planned if step.fit is not Fit.THERE]
    seen = {step.path: step.found for step in writing if step.found is not None}
    write_changes(folder, seen, {step.path: step.result for step in writing})
    return [step.path for step in planned]


def count_lines(before: bytes | None, now: bytes | None) -> tuple[int, int]:
    """Return the numbers of added and removed lines."""
    old = {} if before is None else {"file": before}
    new = {} if now is None else {"file": now}
    lines = unified_diff(old, new).split("\n")[2:]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)
