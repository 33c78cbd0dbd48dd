"""The grader: applies only the agent's diff to a pristine copy, and lets the task's verifier examine the result in
fresh boxes.

It trusts nothing that the agent could touch. An infrastructure fault gives the judgement `error`, never `fail`. A diff
that cannot be applied, or code that kills or outlasts its verifier, is the agent's fault and gives `fail`.
"""

from __future__ import annotations

import asyncio
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


@dataclass(slots=True)
class GraderStats:
    graded: int = 0
    """Gradings that ran in a box."""
    remembered: int = 0
    """Gradings answered by an earlier one with the same task, tests and resulting tree."""


@dataclass(frozen=True, slots=True)
class _LoadedTask:
    task: Task
    """The task, with its limits tightened to those that the gate measured."""
    digest: str
    gated: str
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
        self._verdicts: Memo[tuple[str, str], Verdict] = Memo(MOST_VERDICTS)
        self._loaded: Memo[tuple[str, str], _LoadedTask] = Memo(8192)
        self._base_shows: Memo[str, bool] = Memo(MOST_VERDICTS)

    async def grade(self, task: Task, diff: str, *, fresh: bool = False, conditions: Conditions = USUAL) -> Verdict:
        """Return the verdict on a diff. It is cached for all diffs with the same resulting tree, except with `fresh`
        (as the gate grades) and under unusual `conditions`."""
        try:
            loaded = await self._load(task)
        except TaskError as error:
            return Verdict(Judgement.ERROR, f"the task cannot be graded: {error}")
        except (SandboxError, OSError) as error:
            return Verdict(Judgement.ERROR, f"no image: {error}")
        try:
            change = loaded.pristine.change(diff, loaded.verifier.protects)
        except DiffError as error:
            return Verdict(Judgement.FAIL, f"the diff is refused: {error}")
        if fresh or conditions != USUAL:
            return await self._run(loaded, change, conditions)

        async def grade() -> tuple[Verdict, bool]:
            verdict = await self._run(loaded, change, USUAL)
            return verdict, verdict.judgement is not Judgement.ERROR

        verdict = await self._verdicts.get((loaded.digest, change.digest), grade)
        self.stats.remembered = self._verdicts.stats.hits
        return verdict

    async def _load(self, task: Task) -> _LoadedTask:
        """Prepare a task for grading. It is prepared again when its files or configuration have changed. All callers
        use the same verifier, because a verifier may cache what it found out."""

        async def make() -> tuple[_LoadedTask, bool]:
            given = with_measured_limits(task)
            verifier = open_verifier(given)
            prepared = await self.environments.prepare(task)
            return _LoadedTask(given, task_digest(given), gated_digest(task), prepared, verifier), True

        stamp = await asyncio.to_thread(stamp_of, task)
        return await self._loaded.get((f"{task.directory} {task.id}", stamp), make)

    async def _run(self, loaded: _LoadedTask, change: Change, conditions: Conditions) -> Verdict:
        context = GradingContext(
            loaded.task, self.sandboxes, loaded.pristine, change, conditions, proofs=self.environments.proofs
        )
        try:
            verdict = await loaded.verifier.examine(context)
        except (SandboxError, OSError) as error:
            return Verdict(Judgement.ERROR, f"the box failed: {type(error).__name__}: {error}")
        self.stats.graded += 1
        try:
            sealed = loaded.verifier.sealed and await self._is_sealed(loaded)
        except (TaskError, SandboxError, OSError) as error:
            return Verdict(Judgement.ERROR, f"the environment cannot be searched: {type(error).__name__}: {error}")
        cpu = max(context.cpu_seconds, default=0.0)
        return replace(verdict, evidence=replace(verdict.evidence, sealed=sealed, cpu_seconds=cpu))

    async def _is_sealed(self, loaded: _LoadedTask) -> bool:
        """Return whether a verdict on this task is safe against an agent that knows the grader's source: boxes have a
        second user, who runs the code under test, and the host's system folders do not show the solution."""

        async def base_is_clean() -> tuple[bool, bool]:
            return await self.environments.base_shows_solution(loaded.task), True

        second = Feature.SECOND_USER in self.sandboxes.features
        return second and not await self._base_shows.get(loaded.gated, base_is_clean)
