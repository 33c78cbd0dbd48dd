"""Evidence on disk: a line per gating in one gate.jsonl, and beside each task its own, for whoever is given the task.

Invariant: a task's own evidence is there before its line is, and each is whole or absent."""

from __future__ import annotations

import json
from pathlib import Path

from etude.journal import append_rows, whole_lines, write_atomically
from etude.tasks.gate.result import GateResult
from etude.tasks.limits import EVIDENCE
from etude.tasks.task import Task


def keep_evidence(task: Task, result: GateResult, lines: Path, *, beside: str = EVIDENCE) -> None:
    own = task.directory / beside
    own.parent.mkdir(exist_ok=True)
    write_atomically(own, (json.dumps(result.row(), indent=1, ensure_ascii=False) + "\n").encode())
    append_rows(lines, [result.row()])


def stored_evidence(task: Task) -> GateResult | None:
    """What the task's own folder says, also of an earlier state of it: compare the digest."""
    try:
        return GateResult.read(json.loads((task.directory / EVIDENCE).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_evidence(path: Path) -> list[GateResult]:
    """Every whole line; one that holds no result is as if it had not been written: its task is gated again."""
    found: list[GateResult] = []
    for line in whole_lines(path):
        try:
            found.append(GateResult.read(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            continue
    return found
