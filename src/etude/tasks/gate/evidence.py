"""The gate's evidence on disk: one line per gating in gate.jsonl, and a copy in each task's own folder, which goes
wherever the task goes.

Invariant: the copy is written before the line, and both are written atomically.
"""

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
    """Return the evidence in the task's own folder, or None. It may be about an earlier state of the task: compare its
    digest."""
    try:
        return GateResult.read(json.loads((task.directory / EVIDENCE).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_evidence(path: Path) -> list[GateResult]:
    """Return every result in an evidence file. A torn or foreign line is skipped, so its task is gated again."""
    found: list[GateResult] = []
    for line in whole_lines(path):
        try:
            found.append(GateResult.read(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            continue
    return found
