"""The gate: a task may be used only if doing nothing fails and its reference passes, again and again.

Faults of the infrastructure are kept apart: such a task is gated again, it neither survives nor is discarded.
Evidence is one line per task in gate.jsonl; a gate that was interrupted goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from etude.journal import append_rows, drop_torn_line, whole_lines
from etude.sandbox.contract import Sandboxes
from etude.tasks.directory import task_digest
from etude.tasks.grader import Grader
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Judgement

REFERENCE = "solution/patch.diff"


@dataclass(frozen=True, slots=True)
class GateResult:
    task: str
    digest: str
    nothing: Judgement
    """Of an empty diff."""
    reference: tuple[Judgement, ...]
    seconds: float
    reasons: tuple[str, ...] = field(default=())
    """Of the gradings that did not come out as they must."""

    @property
    def survived(self) -> bool:
        return self.nothing is Judgement.FAIL and all(j is Judgement.PASS for j in self.reference)

    @property
    def decided(self) -> bool:
        """No grading was an error of ours."""
        return Judgement.ERROR not in (self.nothing, *self.reference)


def reference_diff(task: Task) -> str:
    path = task.directory / REFERENCE
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: expected the reference solution: {error.strerror}") from error


async def gate(task: Task, sandboxes: Sandboxes, *, runs: int = 3, grader: Grader | None = None) -> GateResult:
    """Each grading runs its tests anew, in a box of its own and with another hash seed."""
    grader = grader or Grader(sandboxes)
    started = time.monotonic()
    verdicts = [await grader.grade(task, "", fresh=True)]
    solution = reference_diff(task)
    verdicts += [await grader.grade(task, solution, fresh=True) for _ in range(runs)]
    wanted = [Judgement.FAIL] + [Judgement.PASS] * runs
    return GateResult(
        task=task.id,
        digest=task_digest(task),
        nothing=verdicts[0].judgement,
        reference=tuple(verdict.judgement for verdict in verdicts[1:]),
        seconds=round(time.monotonic() - started, 4),
        reasons=tuple(v.reason for v, want in zip(verdicts, wanted, strict=True) if v.judgement is not want),
    )


async def gate_tasks(
    tasks: Sequence[Task], sandboxes: Sandboxes, evidence: Path, *, runs: int = 3, concurrency: int = 4
) -> dict[str, GateResult]:
    """Gates what `evidence` does not hold a decision on yet; results by task id."""
    results = {r.task: r for r in read_evidence(evidence)}
    grader = Grader(sandboxes)
    turn = asyncio.Semaphore(concurrency)
    evidence.parent.mkdir(parents=True, exist_ok=True)
    drop_torn_line(evidence)

    async def one(task: Task) -> None:
        known = results.get(task.id)
        if known is not None and known.decided and known.digest == task_digest(task) and len(known.reference) >= runs:
            return
        async with turn:
            result = await gate(task, sandboxes, runs=runs, grader=grader)
        results[task.id] = result
        append_rows(evidence, [asdict(result)])

    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(one(task))
    return {task.id: results[task.id] for task in tasks}


def read_evidence(path: Path) -> list[GateResult]:
    """Every whole line; one that holds no result is as if it had not been written: its task is gated again."""
    found: list[GateResult] = []
    for line in whole_lines(path):
        try:
            row = json.loads(line)
            found.append(
                GateResult(
                    task=row["task"],
                    digest=row["digest"],
                    nothing=Judgement(row["nothing"]),
                    reference=tuple(map(Judgement, row["reference"])),
                    seconds=row["seconds"],
                    reasons=tuple(row["reasons"]),
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return found
