"""The evaluator: runs several samples per task at temperature 1, and one greedy sample.

Each finished sample is written to results.jsonl, so that a resumed evaluation skips it. A sample that ends in an
infrastructure error is retried; if every retry fails, it is counted as an error and left out of every score. The
journal counts how many evaluations have used a split (touches), and the count is reported beside the score.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from etude.journal import Journal, read_journal, write_atomically
from etude.recipe.acting import EvaluationRecipe
from etude.rollout.job import RolloutJob, RolloutResult
from etude.rollout.results import ResultLog, Sample, sample_of
from etude.rollout.summary import Summary, summarise
from etude.tasks.task import Split, Task
from etude.trace.file import read_traces

Rollout = Callable[[RolloutJob], Awaitable[RolloutResult]]

RETRIES = 2
WRITE_TOGETHER = 64
TOUCH = "split_touch"
"""Kind of the journal event that records that an evaluation used a split."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    summary: Summary
    samples: list[Sample]


async def evaluate(
    tasks: Sequence[Task],
    rollout: Rollout,
    recipe: EvaluationRecipe,
    folder: Path,
    *,
    name: str,
    split: Split,
    seed: int,
    journal: Journal,
    max_edits: int | None = None,
    first_edits: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Evaluate `tasks` and write results.jsonl, traces/ and summary.json to `folder`.

    `name` must be unique among all evaluations of the run. Raises SplitViolation if a task is not of `split`."""
    subjects = {task.id: task.require(split) for task in tasks}
    touch = _touch(journal, name, split)
    log = ResultLog(folder)
    samples = {sample.id: sample for sample in await asyncio.to_thread(log.read) if sample.valid}
    spans = await asyncio.to_thread(_spans, folder, {sample.trace for sample in samples.values()})
    jobs = [
        job
        for task in tasks
        for job in _jobs(task, recipe, name, seed, max_edits, first_edits)
        if job.id.rpartition(".")[0] not in samples
    ]
    total = len(jobs) + len(samples)
    waiting = iter(jobs)
    finished: list[tuple[Sample, RolloutResult]] = []

    async def flush() -> None:
        batch = finished[:]
        finished.clear()
        await asyncio.to_thread(log.write, batch)

    writing = asyncio.Lock()

    async def pull() -> None:
        # All pullers share one iterator, so each takes the next job as soon as it has finished one.
        for job in waiting:
            result = await _with_retries(job, rollout)
            sample = sample_of(result, subjects[job.task])
            samples[sample.id] = sample
            if sample.valid:
                spans.append(result.trace.version_span())
            finished.append((sample, result))
            progress(len(samples), total)
            async with writing:
                if len(finished) >= WRITE_TOGETHER:
                    await flush()

    progress(len(samples), total)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(recipe.concurrency, len(jobs))):
                group.create_task(pull())
    except ExceptionGroup as failures:
        # Raise only the first error: the others have the same cause or follow from it.
        raise failures.exceptions[0] from None
    finally:
        if finished:
            await flush()
    ordered = [samples[key] for key in sorted(samples)]
    summary = summarise(
        ordered,
        name=name,
        split=split,
        touch=touch,
        k=recipe.samples,
        first_edits=first_edits,
        seed=seed,
        spans=spans,
    )
    write_atomically(folder / "summary.json", (json.dumps(asdict(summary), indent=2) + "\n").encode())
    journal.event(
        "evaluated",
        name=name,
        split=split,
        touch=touch,
        samples=summary.samples,
        errors=summary.errors,
        versions=summary.versions,
    )
    return Evaluation(summary, ordered)


def _jobs(
    task: Task, recipe: EvaluationRecipe, name: str, seed: int, max_edits: int | None, first_edits: bool
) -> list[RolloutJob]:
    def job(kind: str, member: int, temperature: float) -> RolloutJob:
        digest = hashlib.blake2b(f"{seed}:{task.id}:{kind}:{member}".encode(), digest_size=4).digest()
        return RolloutJob(
            task=task.id,
            split=task.split,
            group=f"{name}:{task.id}{kind}",
            member=member,
            seed=int.from_bytes(digest) >> 1,
            temperature=temperature,
            max_edits=max_edits,
            grade_first_edit=first_edits,
        )

    drawn = [job("", member, 1.0) for member in range(recipe.samples)]
    return [*drawn, job(":greedy", 0, 0.0)] if recipe.greedy else drawn


def _spans(folder: Path, traces: set[str]) -> list[tuple[int, int]]:
    """Return the oldest and newest version that sampled a token, for each of the traces written before a restart."""
    return [trace.version_span() for trace in read_traces(folder / "traces", only=traces)] if traces else []


async def _with_retries(job: RolloutJob, rollout: Rollout) -> RolloutResult:
    for attempt in range(RETRIES):
        result = await rollout(replace(job, attempt=attempt))
        if not result.failed_by_us:
            return result
    return await rollout(replace(job, attempt=RETRIES))


def _touch(journal: Journal, name: str, split: Split) -> int:
    """Return this evaluation's position, from 1, among the run's evaluations of the split. It is kept on resume."""
    events = [entry.fields for entry in read_journal(journal.folder, kind=TOUCH)]
    names = list(dict.fromkeys(str(fields["name"]) for fields in events if fields["split"] == split))
    if name not in names:
        journal.event(TOUCH, name=name, split=split)
        names.append(name)
    return names.index(name) + 1
