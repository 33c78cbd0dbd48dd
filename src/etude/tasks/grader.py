"""The grader: applies only the agent's diff to a pristine copy, and lets the task's verifier examine it in fresh
boxes.

It trusts nothing that the agent could touch. A fault of the infrastructure is an `error`, never a `fail`. A diff that
cannot be applied, or code that kills or outlasts its verifier, is the agent's fault and a `fail`.
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
from etude.tasks.limits import limited
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers import Stand, Verifier, open_verifier

MEMO = 50_000
"""Most verdicts that are remembered."""


@dataclass(slots=True)
class GraderStats:
    graded: int = 0
    """Gradings that ran in a box."""
    remembered: int = 0
    """Gradings answered from the cache: task, tests and resulting tree were equal to an earlier one."""
    errors: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ready:
    stamp: str
    """`stamp_of` the task when it was read."""
    task: Task
    """The task with the tighter limits that the gate measured."""
    digest: str
    """`task_digest`: covers everything that decides a verdict."""
    gated: str
    """`gated_digest`: covers the task's solutions as well."""
    pristine: Prepared
    verifier: Verifier


class Grader:
    def __init__(
        self,
        sandboxes: Sandboxes,
        *,
        environments: Environments | None = None,
    ) -> None:
        if Feature.ISOLATED not in sandboxes.features:
            raise SandboxUnavailable(
                "nothing keeps code in the boxes of this sandbox.mode, so nothing is graded in them: set it to auto, "
                "and see `etude sandbox doctor`"
            )
        self.sandboxes = sandboxes
        self.environments = environments or Environments(sandboxes)
        self.stats = GraderStats()
        self._memo: dict[tuple[str, str], Verdict] = {}
        self._running: dict[tuple[str, str], asyncio.Future[Verdict]] = {}
        self._ready: dict[str, _Ready] = {}
        self._shown: Memo[str, bool] = Memo(MEMO)

    async def grade(self, task: Task, diff: str, *, fresh: bool = False, conditions: Conditions = USUAL) -> Verdict:
        """Return the verdict on a diff. `fresh` runs the tests even if an equal tree was graded before, as the gate
        needs; so do conditions other than the usual ones."""
        try:
            ready = await self._load(task)
        except TaskError as error:
            return self._error(f"the task cannot be graded: {error}")
        except (SandboxError, OSError) as error:
            return self._error(f"no image: {error}")
        try:
            change = ready.pristine.change(diff, ready.verifier.protects)
        except DiffError as error:
            return Verdict(Judgement.FAIL, f"the diff is refused: {error}")
        if fresh or conditions != USUAL:
            return await self._run(ready, change, conditions)
        key = (ready.digest, change.digest)
        if (known := self._memo.get(key)) is not None:
            self.stats.remembered += 1
            return known
        if (running := self._running.get(key)) is not None:
            self.stats.remembered += 1
            return await asyncio.shield(running)
        future = asyncio.ensure_future(self._run(ready, change, USUAL))
        self._running[key] = future
        try:
            verdict = await asyncio.shield(future)
        finally:
            if future.done():
                del self._running[key]
            else:
                # The caller gave up; the grading goes on for whoever else waits for it.
                future.add_done_callback(lambda _: self._running.pop(key, None))
        if verdict.judgement is not Judgement.ERROR:
            while len(self._memo) >= MEMO:
                del self._memo[next(iter(self._memo))]
            self._memo[key] = verdict
        return verdict

    async def _load(self, task: Task) -> _Ready:
        """Prepare a task for grading, cached until its stamp changes: a task whose files or configuration changed is
        prepared again."""
        place, stamp = f"{task.directory} {task.id}", await asyncio.to_thread(stamp_of, task)
        if (known := self._ready.get(place)) and known.stamp == stamp:
            return known
        given = limited(task)
        verifier = open_verifier(given)
        prepared = await self.environments.prepare(task)
        ready = _Ready(stamp, given, task_digest(given), gated_digest(task), prepared, verifier)
        # When several callers load the task at once, all use the first one's verifier, because a verifier may cache
        # what it found out.
        if not (known := self._ready.get(place)) or known.stamp != stamp:
            self._ready[place] = ready
        return self._ready[place]

    async def _run(self, ready: _Ready, change: Change, conditions: Conditions) -> Verdict:
        started = time.monotonic()
        stand = Stand(ready.task, self.sandboxes, ready.pristine, change, conditions, proofs=self.environments.proofs)
        try:
            verdict = await ready.verifier.examine(stand)
        except (SandboxError, OSError) as error:
            return self._error(f"the box failed: {type(error).__name__}: {error}")
        self.stats.graded += 1
        self.stats.seconds += time.monotonic() - started
        if verdict.judgement is Judgement.ERROR:
            self.stats.errors += 1
        try:
            sealed = ready.verifier.sealed and await self._holds(ready)
        except (TaskError, SandboxError, OSError) as error:
            return self._error(f"the environment cannot be looked through: {type(error).__name__}: {error}")
        cpu = max(stand.cpu_seconds, default=0.0)
        return replace(verdict, evidence=replace(verdict.evidence, sealed=sealed, cpu_seconds=cpu))

    async def _holds(self, ready: _Ready) -> bool:
        """Whether the verdict is sealed: the box must have a second user, and the environment must not show the
        solution."""

        async def look() -> tuple[bool, bool]:
            return await self.environments.shows(ready.task), True

        second = Feature.SECOND_USER in self.sandboxes.features
        return second and not await self._shown.get(ready.gated, look)

    def _error(self, reason: str) -> Verdict:
        self.stats.errors += 1
        return Verdict(Judgement.ERROR, reason)
