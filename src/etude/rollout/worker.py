"""The environment worker: a cluster service that runs rollouts.

The driver calls `rollout` once per rollout, and may have any number of calls in flight. The worker has no queue of its
own, since a queue could block lockstep generation.

A worker may read tasks only of the splits it is started with.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.cluster.contract import Remote
from etude.engine.protocol import (
    Engine,
    EngineError,
    EngineInfo,
    EngineOutOfMemory,
    EngineStats,
    GenerateRequest,
    Generation,
)
from etude.engine.remote import RemoteEngine
from etude.harness.from_recipe import format_of
from etude.harness.policies.token import TokenPolicy, TokenSampling
from etude.journal import Journal, RunPaths
from etude.recipe import Recipe
from etude.rollout.job import RolloutJob, RolloutResult
from etude.rollout.rollout import INFRASTRUCTURE, lost_rollout, run_rollout
from etude.rollout.setup import TaskCache, open_setup
from etude.sandbox.fleet import Fleet
from etude.tasks.task import Split, Task
from etude.trace.builder import TraceBuilder


@dataclass(slots=True)
class WorkerStats:
    running: int = 0
    finished: int = 0
    errors: int = 0
    commands_shared: int = 0
    """Number of commands answered from the cache, with the result of the same command in another rollout."""
    commands_run: int = 0
    gradings_shared: int = 0
    gradings_run: int = 0


class RolloutWorker:
    """Runs rollouts. `engine` is an Engine in this process or a handle to an engine service."""

    def __init__(
        self,
        run_folder: str,
        recipe: dict[str, Any],
        engine: Remote | Engine,
        splits: tuple[str, ...] = ("train", "dev"),
        name: str = "worker",
        fleet: Fleet | None = None,
    ) -> None:
        self._recipe = Recipe.model_validate(recipe)
        self._paths = RunPaths(Path(run_folder))
        self._lockstep = self._recipe.rl.mode == "sync"
        limits = self._recipe.cluster
        served = engine if isinstance(engine, Engine) else RemoteEngine(engine, limits, lockstep=self._lockstep)
        self._journal = Journal(self._paths.journal, name)
        self._engine: Engine = WaitedEngine(served, self._journal, limits.generate_seconds)
        self._form = format_of(self._recipe.harness, self._paths.tokenizer)
        self._setup, self._grader = open_setup(self._recipe, self._paths, fleet)
        self._setup.live = self._paths.live
        self._task_cache = TaskCache(self._paths.tasks, [Split(split) for split in splits], self._setup.environments)
        self._stats = WorkerStats()

    async def rollout(self, job: RolloutJob) -> RolloutResult:
        self._stats.running += 1
        try:
            subject = await self._task_cache.get(job.task, job.split)
            if self._lockstep:
                # In RL the driver has announced this conversation already; an evaluation's rollouts do it here.
                await self._engine.open([job.id])
            result = await run_rollout(job, subject, self._policy, self._setup)
        except INFRASTRUCTURE as error:
            # In lockstep the engine would wait for ever for this conversation's next turn.
            with suppress(EngineError):
                await self._engine.close(job.id)
            result = lost_rollout(job, error)
        finally:
            self._stats.running -= 1
        self._stats.finished += 1
        if result.failed_by_us:
            self._stats.errors += 1
            self._journal.event("rollout_failed", rollout=job.id, reason=result.verdict.reason)
        return result

    def _policy(self, job: RolloutJob, task: Task, recorder: TraceBuilder) -> TokenPolicy:
        return TokenPolicy(
            self._engine,
            self._form,
            self._setup.profile(task).schemas(),
            TokenSampling(self._recipe.engine.context, job.temperature, job.seed),
            recorder,
            conversation=job.id,
        )

    async def stats(self) -> dict[str, Any]:
        memo = self._setup.memo.stats
        self._stats.commands_shared, self._stats.commands_run = memo.hits, memo.misses
        self._stats.gradings_shared = self._grader.stats.remembered
        self._stats.gradings_run = self._grader.stats.graded
        return asdict(self._stats)

    async def close(self) -> None:
        await self._setup.sandboxes.close()
        self._journal.close()


class WaitedEngine:
    """Engine that logs each generation as a wait in the journal. `deadline` is only logged; `engine` enforces it."""

    def __init__(self, engine: Engine, journal: Journal, deadline: float) -> None:
        self._engine, self._journal, self._deadline = engine, journal, deadline

    async def generate(self, request: GenerateRequest) -> Generation:
        with self._journal.waiting(on="engine", deadline=self._deadline):
            try:
                return await self._engine.generate(request)
            except EngineOutOfMemory:
                # No rollout failed: the driver asks for the engine's state, ends the run and says what to change.
                await asyncio.sleep(self._deadline)
                raise

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def open(self, conversations: list[str]) -> None:
        await self._engine.open(conversations)

    async def close(self, conversation: str) -> None:
        await self._engine.close(conversation)

    async def update(self, version: int) -> None:
        await self._engine.update(version)

    async def stats(self) -> EngineStats:
        return await self._engine.stats()
