"""Gates many tasks concurrently: test gradings decide for each task whether it may be used. Each decision is written as
soon as it is made.

Invariant: a task is not run again if the `evidence` file has a decision about its present state. So an interrupted or
killed gate continues after its last decision, and a changed task is gated again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from etude.journal import drop_torn_line
from etude.sandbox.contract import Sandboxes
from etude.tasks.directory import gated_digest
from etude.tasks.gate.admission import GradingQueue
from etude.tasks.gate.evidence import keep_evidence, read_evidence
from etude.tasks.gate.result import REFERENCE, GateResult
from etude.tasks.gate.single import Cheats, Gate, conditions_of
from etude.tasks.grader import Grader
from etude.tasks.limits import EVIDENCE
from etude.tasks.task import Task, TaskError


async def gate_tasks(
    tasks: Sequence[Task],
    sandboxes: Sandboxes,
    evidence: Path,
    *,
    runs: int = 3,
    concurrency: int = 4,
    cheats: Cheats | None = None,
    grader: Grader | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, GateResult]:
    """Find out by test gradings whether tasks may be used, and return the results of all tasks by id. Tasks with a
    decision in the file `evidence` are not graded again.

    `cheats` is run once for all tasks in which cheats have the same chances, such as tasks with the same image.
    """
    shared = Gate(grader or Grader(sandboxes), conditions_of(runs), cheats=cheats, queue=GradingQueue(concurrency))
    return await examine_all(tasks, shared, evidence, progress=progress)


async def examine_all(
    tasks: Sequence[Task],
    gate: Gate,
    evidence: Path,
    *,
    beside: str = EVIDENCE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, GateResult]:
    """Run one gate's checks on the tasks that are not decided in the file `evidence`, and return all results by task
    id. Each new result is appended to that file, and copied to `beside`, a path relative to the task's folder."""
    _require_unique_ids(tasks)
    evidence.parent.mkdir(parents=True, exist_ok=True)
    drop_torn_line(evidence)
    results = {result.task: result for result in read_evidence(evidence)}
    started_at_once = asyncio.Semaphore(gate.queue.started_at_once)
    done = 0

    async def one(task: Task) -> None:
        nonlocal done
        async with started_at_once:
            if not await asyncio.to_thread(_is_decided, task, results.get(task.id), len(gate.conditions)):
                # Drop the limits of an earlier gating: this one may be on a slower machine.
                (task.directory / beside).unlink(missing_ok=True)
                results[task.id] = result = await gate.examine(task)
                keep_evidence(task, result, evidence, beside=beside)
        done += 1
        progress(done, len(tasks))

    try:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(one(task))
    except ExceptionGroup as several:
        raise several.exceptions[0] from several  # One error, such as a full disk, is shown as one line.
    return {task.id: results[task.id] for task in tasks}


def _require_unique_ids(tasks: Sequence[Task]) -> None:
    places = {task.id: task.directory for task in tasks}
    for task in tasks:
        if places[task.id] != task.directory:
            raise TaskError(
                f"{places[task.id]}: its id {task.id!r} is also that of {task.directory}: gate them separately"
            )


def _is_decided(task: Task, known: GateResult | None, runs: int) -> bool:
    """Return whether the earlier result `known` decides about the task as it is now. A result that lets the task be
    used must count at least `runs` runs of the reference solution."""
    if known is None or not known.decided:
        return False
    passes = sum(run.what == REFERENCE for run in known.counted)
    try:
        return known.digest == gated_digest(task) and (not known.survived or passes >= runs)
    except TaskError:
        return False
