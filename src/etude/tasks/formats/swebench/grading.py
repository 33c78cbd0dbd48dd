"""Grades predictions, writes a row of evidence for each, and reports the results as SWE-bench does.

A row is written when its grading is done, so an interrupted run continues after its last row. A prediction whose
grading ends in an infrastructure fault is graded again next time. It counts as an error, never as unresolved.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.journal import append_rows, drop_torn_line, whole_lines
from etude.sandbox.contract import SandboxError
from etude.tasks.diff import DiffError
from etude.tasks.directory import task_digest
from etude.tasks.formats.swebench.plain_patches import plain_diff
from etude.tasks.formats.swebench.predictions import Prediction
from etude.tasks.gate import reference_diff
from etude.tasks.grader import Grader
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Judgement, Verdict

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Graded:
    """The result of grading one prediction; one row of the file `evidence` of `grade_predictions`."""

    instance_id: str
    model: str
    digest: str
    """Hash of the task and the prediction. If either changes, the prediction is graded again."""
    judgement: Judgement
    reason: str
    sealed: bool = False
    seconds: float = 0.0


async def grade_predictions(
    tasks: Sequence[Task],
    predictions: Iterable[Prediction],
    grader: Grader,
    evidence: Path,
    *,
    concurrency: int = 4,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Grade predictions and return the report. A prediction is not graded if its patch is empty, if no task has its
    instance id, or if the file `evidence` (.jsonl) already has a row for it and the task in its present state. A row
    with an infrastructure error does not count.
    """
    by_id = {task.id: task for task in tasks}
    given = list(predictions)
    known = {row.digest: row for row in read_graded(evidence) if row.judgement is not Judgement.ERROR}
    evidence.parent.mkdir(parents=True, exist_ok=True)
    drop_torn_line(evidence)
    turn = asyncio.Semaphore(concurrency)
    graded: dict[str, Graded] = {}

    async def one(prediction: Prediction, task: Task) -> None:
        async with turn:
            digest = await asyncio.to_thread(_digest, task, prediction)
            if (row := known.get(digest)) is None:
                # The workspaces of a whole benchmark do not fit in memory.
                fresh = Grader(grader.sandboxes, environments=grader.environments.for_one_task())
                verdict = await _grade(fresh, task, prediction.patch)
                seen = verdict.evidence
                row = Graded(
                    prediction.instance_id,
                    prediction.model,
                    digest,
                    verdict.judgement,
                    verdict.reason,
                    seen.sealed,
                    round(seen.seconds, 3),
                )
                append_rows(evidence, [asdict(row)])
        graded[prediction.instance_id] = row
        if on_progress:
            on_progress(len(graded), len(asked))

    asked = [prediction for prediction in given if prediction.patch.strip() and prediction.instance_id in by_id]
    try:
        async with asyncio.TaskGroup() as group:
            for prediction in asked:
                group.create_task(one(prediction, by_id[prediction.instance_id]))
    except ExceptionGroup as several:
        raise several.exceptions[0] from several  # One error, such as a full disk, is shown as one line.
    return make_report(by_id, given, graded.values())


async def _grade(grader: Grader, task: Task, patch: str) -> Verdict:
    """Grade a patch. If it fails the tests, grade the reference too. If that fails as well (in a task that the gate
    never checked, for example), the result says nothing about the model and counts as an error."""
    try:
        prepared = await grader.environments.prepare(task)
        patch = plain_diff(patch, prepared.files.get)
    except DiffError:
        pass  # The grader reports what is wrong with the patch.
    except (TaskError, SandboxError, OSError) as error:
        return Verdict(Judgement.ERROR, f"no environment: {error}")
    verdict = await grader.grade(task, patch)
    if verdict.judgement is not Judgement.FAIL or not verdict.evidence.tests_expected:
        return verdict
    try:
        reference = await grader.grade(task, reference_diff(task))
    except TaskError:
        return verdict  # There is no reference to compare with.
    if reference.passed:
        return verdict
    return Verdict(Judgement.ERROR, f"the reference does not pass here either: {reference.reason}", verdict.evidence)


def make_report(tasks: Iterable[str], predictions: Sequence[Prediction], graded: Iterable[Graded]) -> dict[str, Any]:
    """Return a report with SWE-bench's own fields, and lists of the instances whose verdict is sealed (safe against an
    agent that knows the grader's source), open (not sealed) or suspect (the patch passed as no honest solution can)."""
    total, rows = set(tasks), list(graded)
    submitted = {prediction.instance_id for prediction in predictions}
    empty = {one.instance_id for one in predictions if not one.patch.strip()} & total

    def of(*judgements: Judgement) -> set[str]:
        return {row.instance_id for row in rows if row.judgement in judgements}

    errors, completed = of(Judgement.ERROR), {row.instance_id for row in rows if row.judgement.valid}
    ids = {
        "completed_ids": completed,
        "incomplete_ids": total - submitted,
        "empty_patch_ids": empty,
        "submitted_ids": submitted,
        "resolved_ids": of(Judgement.PASS),
        "unresolved_ids": completed - of(Judgement.PASS),
        "infra_failure_ids": errors,
        "ambiguous_failure_ids": set[str](),
        "error_ids": errors,
        "suspect_ids": of(Judgement.SUSPECT),
        "sealed_ids": {row.instance_id for row in rows if row.sealed},
        "open_ids": {row.instance_id for row in rows if row.judgement.valid and not row.sealed},
        "unknown_ids": submitted - total,
    }
    counted = ("submitted", "completed", "resolved", "unresolved", "infra_failure", "ambiguous_failure", "empty_patch")
    return {
        "total_instances": len(total),
        **{f"{name}_instances": len(ids[f"{name}_ids"]) for name in (*counted, "error", "suspect", "sealed", "open")},
        **{name: sorted(found) for name, found in ids.items()},
        "failure_reasons": {row.instance_id: row.reason for row in sorted(rows, key=lambda row: row.instance_id)
                            if row.judgement is not Judgement.PASS},
        "schema_version": SCHEMA_VERSION,
    }  # fmt: skip


def read_graded(path: Path) -> list[Graded]:
    """Return the rows of an evidence file. A torn or invalid line is skipped, so its prediction is graded again."""
    found = []
    for line in whole_lines(path):
        try:
            row = json.loads(line)
            found.append(Graded(**{**row, "judgement": Judgement(row["judgement"])}))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _digest(task: Task, prediction: Prediction) -> str:
    text = f"{prediction.instance_id}\n{prediction.model}\n{task_digest(task)}\n{prediction.patch}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
