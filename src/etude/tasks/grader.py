"""The grader: applies only the agent's diff to a pristine copy, and lets the task's verifier examine the result in
fresh boxes.

It trusts nothing that the agent could touch. An infrastructure fault gives the judgement `error`, never `fail`. A diff
that cannot be applied, or code that kills or outlasts its verifier, is the agent's fault and gives `fail`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from etude.harness.workspaces.result_cache import Memo
from etude.sandbox.contract import Feature, SandboxError, Sandboxes, SandboxUnavailable
from etude.tasks.change import Change
from etude.tasks.conditions import USUAL, Conditions
from etude.tasks.diff import DiffError
from etude.tasks.directory import gated_digest, stamp_of, task_digest
from etude.tasks.environment import Environments, Prepared
from etude.tasks.limits import with_measured_limits
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers import GradingContext, Verifier, open_verifier

MOST_VERDICTS = 50_000
"""Maximum number of verdicts in the cache."""


@dataclass(slots=True)
class GraderStats:
    """Counters of one grader since it was created."""

    graded: int = 0
    """Number of gradings that ran in a box."""
    remembered: int = 0
    """Number of gradings answered from the cache, because an earlier one had the same task, tests and
    resulting tree.
    """
    errors: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _LoadedTask:
    """A task that is prepared for grading."""

    stamp: str
    """The task's `stamp_of` when the task was read. A different stamp means that the task has changed."""
    task: Task
    """The task, with its limits tightened to those that the gate measured."""
    digest: str
    """The task's `task_digest`, which covers everything that decides a verdict."""
    gated: str
    """The task's `gated_digest`: a hash of its solutions and of everything that decides a verdict."""
    pristine: Prepared
    verifier: Verifier


class Grader:
    """Grades diffs and caches the verdicts. Callers in one process should share one grader, and thus its cache."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        *,
        environments: Environments | None = None,
    ) -> None:
        if Feature.ISOLATED not in sandboxes.features:
            raise SandboxUnavailable(
                "boxes of this sandbox.mode do not isolate code, so gradings cannot run in them: set sandbox.mode to "
                "auto, and see `etude sandbox doctor`"
            )
        self.sandboxes = sandboxes
        self.environments = environments or Environments(sandboxes)
        self.stats = GraderStats()
        self._memo: dict[tuple[str, str], Verdict] = {}
        self._running: dict[tuple[str, str], asyncio.Future[Verdict]] = {}
        self._loaded: dict[str, _LoadedTask] = {}
        self._base_shows: Memo[str, bool] = Memo(MOST_VERDICTS)

    async def grade(self, task: Task, diff: str, *, fresh: bool = False, conditions: Conditions = USUAL) -> Verdict:
        """Return the verdict on a diff. If a diff with the same resulting tree was graded before, return the cached
        verdict. The cache is not used if `fresh` is set (as the gate does), nor if `conditions` (such as time zone,
        test order or a busy machine) are not the usual ones.
        """
        try:
            loaded = await self._load(task)
        except TaskError as error:
            return self._error(f"the task cannot be graded: {error}")
        except (SandboxError, OSError) as error:
            return self._error(f"no image: {error}")
        try:
            change = loaded.pristine.change(diff, loaded.verifier.protects)
        except DiffError as error:
            return Verdict(Judgement.FAIL, f"the diff is refused: {error}")
        if fresh or conditions != USUAL:
            return await self._run(loaded, change, conditions)
        key = (loaded.digest, change.digest)
        if (known := self._memo.get(key)) is not None:
            self.stats.remembered += 1
            return known
        if (running := self._running.get(key)) is not None:
            self.stats.remembered += 1
            return await asyncio.shield(running)
        future = asyncio.ensure_future(self._run(loaded, change, USUAL))
        self._running[key] = future
        try:
            verdict = await asyncio.shield(future)
        finally:
            if future.done():
                del self._running[key]
            else:
                # This caller was cancelled. The grading goes on, because other callers may wait for it.
                future.add_done_callback(lambda _: self._running.pop(key, None))
        if verdict.judgement is not Judgement.ERROR:
            while len(self._memo) >= MOST_VERDICTS:
                del self._memo[next(iter(self._memo))]
            self._memo[key] = verdict
        return verdict

    async def _load(self, task: Task) -> _LoadedTask:
        """Prepare a task for grading. The result is cached until the task's stamp changes, so a task with changed files
        or configuration is prepared again."""
        place, stamp = f"{task.directory} {task.id}", await asyncio.to_thread(stamp_of, task)
        if (known := self._loaded.get(place)) and known.stamp == stamp:
            return known
        given = with_measured_limits(task)
        verifier = open_verifier(given)
        prepared = await self.environments.prepare(task)
        loaded = _LoadedTask(stamp, given, task_digest(given), gated_digest(task), prepared, verifier)
        # When several callers load the task at once, all use the first one's verifier, because a verifier may cache
        # what it found out.
        if not (known := self._loaded.get(place)) or known.stamp != stamp:
            self._loaded[place] = loaded
        return self._loaded[place]

    async def _run(self, loaded: _LoadedTask, change: Change, conditions: Conditions) -> Verdict:
        started = time.monotonic()
        context = GradingContext(
            loaded.task, self.sandboxes, loaded.pristine, change, conditions, proofs=self.environments.proofs
        )
        try:
            verdict = await loaded.verifier.examine(context)
        except (SandboxError, OSError) as error:
            return self._error(f"the box failed: {type(error).__name__}: {error}")
        self.stats.graded += 1
        self.stats.seconds += time.monotonic() - started
        if verdict.judgement is Judgement.ERROR:
            self.stats.errors += 1
        try:
            sealed = loaded.verifier.sealed and await self._is_sealed(loaded)
        except (TaskError, SandboxError, OSError) as error:
            return self._error(f"the environment cannot be searched: {type(error).__name__}: {error}")
        cpu = max(context.cpu_seconds, default=0.0)
        return replace(verdict, evidence=replace(verdict.evidence, sealed=sealed, cpu_seconds=cpu))

    async def _is_sealed(self, loaded: _LoadedTask) -> bool:
        """Return whether a verdict on this task may be called sealed, that is, safe against an agent that knows the
        grader's source. For this, boxes must have a second user, who runs the code under test, and the host's system
        folders must not show the solution.
        """

        async def base_is_clean() -> tuple[bool, bool]:
            return await self.environments.base_shows_solution(loaded.task), True

        second = Feature.SECOND_USER in self.sandboxes.features
        return second and not await self._base_shows.get(loaded.gated, base_is_clean)

    def _error(self, reason: str) -> Verdict:
        self.stats.errors += 1
        return Verdict(Judgement.ERROR, reason)
