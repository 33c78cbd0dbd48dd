"""SFT continued in place of RL, as a baseline at equal wall-clock time. Each round samples rollouts, makes
demonstrations, and trains on the demonstrations and on the rollouts that passed.

The engine, worker, sandboxes, grader and train tasks are the same as in RL. Each part of a round is written to
`continued/round-0000/`, so a killed round resumes where it was. The stage's time limit covers all finished rounds, and
the current session from the moment its services are up. The start of services does not count, nor does the time that a
killed session spent on an unfinished round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from etude.cluster import Supervised
from etude.engine.remote import RemoteEngine
from etude.harness import format_of, profile_of
from etude.journal import append_rows, drop_torn_line, read_metrics
from etude.lineage.contamination import require_separate
from etude.lineage.context import RunContext
from etude.lineage.prepare import boxes, require_held_out, usable_tasks
from etude.lineage.reinforce import rollouts_of, start_engine, start_worker
from etude.recipe.acting import EvaluationRecipe
from etude.rl import dismiss
from etude.rollout import RolloutSetup, demonstrate, evaluate, oracle
from etude.tasks import Split, Task, write_task
from etude.tasks.sources import open_source

_TASKS_PER_DEMONSTRATION = 2
"""Tasks generated per demonstration. More than one, since tasks of kinds outside sft.kinds are skipped."""


async def run_continued(context: RunContext) -> dict[str, Any]:
    await asyncio.to_thread(require_held_out, context)
    recipe, paths = context.recipe, context.paths
    metrics = paths.metrics("continued")
    metrics.parent.mkdir(parents=True, exist_ok=True)
    drop_torn_line(metrics)
    seconds = recipe.continued.seconds
    store = recipe.weights.place(paths.weights)
    trainer = await _start_trainer(context, store)
    engine = await start_engine(context, "engine", paths.model(recipe.before("continued")), store)
    worker = await start_worker(context, engine, "worker-0", ("train",))
    try:
        async with boxes(context) as setup:
            rounds = _Rounds(context, setup, trainer, engine, worker)
            number = await rounds.begin()
            took = [row["seconds"] for row in read_metrics(metrics)]
            begun = time.monotonic() - sum(took)
            while (used := time.monotonic() - begun) + _half_a_round(took) < seconds:
                context.screen.update("continued", {"step": int(used), "total": int(seconds)})
                row = await engine.run_watched(rounds.run(number, used / seconds), ask="stats")
                number += 1
                taken = time.monotonic() - begun
                took.append(taken - used)
                append_rows(metrics, [row | {"step": number, "seconds": took[-1]}])
                context.screen.update("continued", {**row, "step": int(min(taken, seconds)), "total": int(seconds)})
        await trainer.call("export", deadline=recipe.cluster.weights_seconds)
    finally:
        await dismiss(engine, trainer, boxed=[worker])
    rows = read_metrics(metrics)
    totals = {name: sum(row.get(name, 0) for row in rows) for name in ("sampled", "passed", "demonstrations", "steps")}
    return {"rounds": number, "seconds": time.monotonic() - begun, **totals}


def _half_a_round(took: Sequence[float]) -> float:
    """Return half of the last round's seconds, 0 before the first. A round starts only if more time than this is left,
    so the stage ends within half a round of its time limit."""
    return took[-1] / 2 if took else 0.0


class _Rounds:
    def __init__(
        self, context: RunContext, setup: RolloutSetup, trainer: Supervised, engine: Supervised, worker: Supervised
    ) -> None:
        self._context, self._setup, self._trainer, self._worker = context, setup, trainer, worker
        self._limits = context.recipe.cluster
        self._engine = RemoteEngine(engine.remote, self._limits)
        self._form = format_of(context.recipe.harness, context.paths.tokenizer)
        self._tasks = usable_tasks(context, Split.TRAIN)
        self._held_out = [task for split in (Split.DEV, Split.TEST) for task in usable_tasks(context, split)]
        self._order = np.random.default_rng(context.recipe.seed).permutation(len(self._tasks))

    async def begin(self) -> int:
        """Load the trainer's newest weights into the engine. Return the number of the next round, counted from 0."""
        status: Mapping[str, Any] = await self._trainer.call("status", deadline=self._limits.call_seconds)
        await self._engine.update(status["rounds"])
        return int(status["rounds"])

    async def run(self, number: int, used_share: float) -> dict[str, Any]:
        folder = self._context.paths.continued / f"round-{number:04d}"
        sampled, passed = await self._sample(number, folder / "samples")
        made = await self._demonstrate(number, folder)
        demonstrations, traces = str(folder / "demonstrations"), str(folder / "samples" / "traces")
        metrics: dict[str, Any] = await self._trainer.call(
            "train", number, demonstrations, traces, passed, used_share, deadline=self._limits.train_seconds
        )
        await self._engine.update(number + 1)
        return {**metrics, "sampled": sampled, "passed": len(passed), "demonstrations": made}

    async def _sample(self, number: int, folder: Path) -> tuple[int, list[str]]:
        """Sample rollouts on the round's train tasks. Return how many are valid, and the trace ids of those that
        passed. Tasks are used in a fixed random order, which starts again when all have been used."""
        recipe = self._context.recipe
        first = number * recipe.continued.prompts
        places = range(first, first + min(recipe.continued.prompts, len(self._tasks)))
        result = await evaluate(
            [self._tasks[self._order[place % len(self._tasks)]] for place in places],
            rollouts_of(self._context, self._worker),
            EvaluationRecipe(samples=recipe.continued.samples, greedy=False, concurrency=recipe.rl.rollouts_per_worker),
            folder,
            name=f"continued-{number:04d}",
            split=Split.TRAIN,
            seed=recipe.seed + number,
            journal=self._context.journal,
            first_edits=False,
        )
        valid = [sample for sample in result.samples if sample.valid]
        return len(valid), [sample.trace for sample in valid if sample.passed]

    async def _demonstrate(self, number: int, folder: Path) -> int:
        recipe = self._context.recipe
        made = await demonstrate(
            await asyncio.to_thread(self._fresh_tasks, number, folder / "tasks"),
            self._setup,
            self._form,
            recipe.engine.context,
            folder / "demonstrations",
            count=recipe.continued.demonstrations,
            kinds=recipe.sft.kinds,
            seed=recipe.seed + 1 + number,
            expert=oracle(rewrites=recipe.sft.rewrites, tools=profile_of(recipe.harness).tools),
            journal=self._context.journal,
        )
        return made.kept

    def _fresh_tasks(self, number: int, folder: Path) -> list[Task]:
        """Generate the tasks on which this round makes demonstrations. Their numbers in the source's endless sequence
        are used neither by the train tasks nor by earlier rounds. The gate, which checks that tasks can be solved, is
        skipped: a demonstration that passes grading proves this."""
        recipe = self._context.recipe
        count = recipe.continued.demonstrations * _TASKS_PER_DEMONSTRATION
        source, first = open_source(recipe.tasks.source), recipe.tasks.train + number * count
        tasks = []
        for index in range(first, first + count):
            directory = folder / f"{source.name}-{Split.TRAIN}-{index:06d}"
            task, files = source.make(Split.TRAIN, index, recipe.seed, directory)
            if not recipe.sft.kinds or task.kind in recipe.sft.kinds:
                write_task(task.require(Split.TRAIN), files)
                tasks.append(task)
        require_separate([*tasks, *self._held_out])
        return tasks


async def _start_trainer(context: RunContext, store: str) -> Supervised:
    return await context.start(
        "trainer",
        "etude.pretrain.continued:ContinuedTrainer",
        str(context.paths.root),
        context.recipe.model_dump(mode="json", by_alias=True),
        asdict(context.compute()),
        store,
    )
