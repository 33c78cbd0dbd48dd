"""Applies an agent's changes to a folder that may have changed since the agent started.

Invariant: planning writes nothing. A step says what will be in the folder and which contents it expects there, so that
newer contents are never overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from etude.harness.background.merge import merge
from etude.harness.editing.apply import ApplyConflict, in_the_way, write_changes
from etude.harness.editing.diff import as_text, binary_changes, unified_diff
from etude.harness.workspaces.workspace import TOO_LARGE

Changes = Mapping[str, tuple[bytes | None, bytes | None]]
"""Contents at the agent's start and now; None if there is no file."""


class Fit(StrEnum):
    WRITES = "writes"
    """The folder still has what the agent started from."""
    THERE = "there"
    """The folder already has the agent's version."""
    MERGES = "merges"
    """The folder and the agent changed the file in different places."""
    CONFLICTS = "conflicts"


@dataclass(frozen=True, slots=True)
class Step:
    path: str
    fit: Fit
    found: bytes | None = None
    """Contents in the folder now."""
    result: bytes | None = None
    """Contents after the step; for a conflict, the agent's version."""
    why: str = ""
    """Reason for a conflict."""


def steps(folder: Path, changes: Changes, only: Collection[str] = ()) -> list[Step]:
    """Plan one step per changed file, or only for those in `only`. Files too large to read are left out."""
    unknown = sorted(set(only) - changes.keys())
    if unknown:
        raise ApplyConflict(
            f"the agent did not change {', '.join(unknown)}: expected some of {', '.join(sorted(changes)) or 'nothing'}"
        )
    if not folder.is_dir():
        raise ApplyConflict(f"{folder} is not there any more: the change has nowhere to go")
    chosen = sorted(path for path, (_, now) in changes.items() if now != TOO_LARGE and (not only or path in only))
    return [_step(folder, path, *changes[path]) for path in chosen]


def _step(folder: Path, path: str, before: bytes | None, now: bytes | None) -> Step:
    if obstacle := in_the_way(folder, path):
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
        return Step(path, Fit.CONFLICTS, found, now, "was made meanwhile, with other content")
    if None in (as_text(before), as_text(now), as_text(found)):
        return Step(path, Fit.CONFLICTS, found, now, "was changed meanwhile, and is no text")
    merged = merge(before, found, now)
    if merged is None:
        return Step(path, Fit.CONFLICTS, found, now, "was changed meanwhile in the same lines")
    return Step(path, Fit.MERGES, found, merged)


def preview(planned: Collection[Step]) -> str:
    """Diff from the folder's current contents to those after the steps."""
    before = {step.path: step.found for step in planned}
    after = {step.path: step.result for step in planned}
    old = {path: data for path, data in before.items() if data is not None}
    new = {path: data for path, data in after.items() if data is not None}
    return unified_diff(old, new) + binary_changes(old, new)


def write(folder: Path, planned: Collection[Step], *, merging: bool) -> list[str]:
    """Write all steps, or none if ApplyConflict is raised. Return all paths, also those the folder had already."""
    if conflicts := [f"{step.path} {step.why}" for step in planned if step.fit is Fit.CONFLICTS]:
        raise ApplyConflict(
            f"nothing was written: {'; '.join(conflicts)}; choose other files, put it back, or let the agent do it "
            "again on top: `etude agents resume --rebase`"
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
    """Numbers of added and removed lines."""
    old = {} if before is None else {"file": before}
    new = {} if now is None else {"file": now}
    lines = unified_diff(old, new).split("\n")[2:]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)
