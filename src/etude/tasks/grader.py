"""The grader: applies only the agent's diff to a pristine copy, and lets the task's verifier examine the result in
fresh boxes.

It trusts nothing that the agent could touch. An infrastructure fault gives the judgement `error`, never `fail`. A diff
that cannot be applied, or code that kills or outlasts its verifier, is the agent's fault and gives `fail`.

Invariant: what the agent controls cannot decide that a grading ends in `error`. When one does, the reference solution
is graded in the same circumstances. Only if that ends in `error` too is it the infrastructure's fault.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass, replace

from etude.harness.workspaces.result_cache import Memo
from etude.sandbox.contract import Feature, SandboxError, Sandboxes, SandboxUnavailable
from etude.tasks.change import Change
from etude.tasks.conditions import USUAL, Conditions
from etude.tasks.diff import DiffError
from etude.tasks.directory import REFERENCE_DIFF, gated_digest, stamp_of, task_digest
from etude.tasks.environment import Environments, Prepared
from etude.tasks.limits import with_measured_limits
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers import GradingContext, Verifier, open_verifier

MOST_VERDICTS = 50_000
REPEATS = 2
"""How often a grading that ended in an error is repeated before the change is blamed. The reference solution is graded
before each repetition, to find out whether the host is to blame. On a host that loses one box in a hundred for no
reason, all three gradings of a change fail once in a million times."""
_LONGEST_REASON, _LONGEST_LOG = 1000, 4000


@dataclass(slots=True)
class GraderStats:
    graded: int = 0
    """Number of verdicts that verifiers have returned, those on reference solutions included."""
    remembered: int = 0
    """Number of gradings answered from the cache: an earlier one had the same task, tests and resulting tree."""


@dataclass(frozen=True, slots=True)
class _LoadedTask:
    task: Task
    """The task to grade. Its limits are tightened to what the gate, which admits tasks, measured."""
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
        """Return the verdict on a diff. A verdict other than `error` is cached for all diffs with the same resulting
        tree. The cache is not used with `fresh` (set when a task is checked by the gate) or under unusual
        `conditions`."""
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
        verdict, bug = await self._examined(loaded, change, conditions)
        if _may_be_blamed(verdict):
            verdict = await self._blamed(loaded, change, conditions, verdict, bug)
        if verdict.judgement is Judgement.ERROR:
            return verdict
        try:
            sealed = loaded.verifier.sealed and await self._is_sealed(loaded)
        except (TaskError, SandboxError, OSError) as error:
            return Verdict(Judgement.ERROR, f"the environment cannot be searched: {type(error).__name__}: {error}")
        return replace(verdict, evidence=replace(verdict.evidence, sealed=sealed))

    async def _examined(
        self, loaded: _LoadedTask, change: Change, conditions: Conditions
    ) -> tuple[Verdict, Exception | None]:
        """Let the verifier examine the change once, and return its verdict. If it raises an exception, the verdict is
        `error`. An exception that verifiers are not allowed to raise is returned too. It is a bug of ours, or caused by
        data that the change made us read."""
        context = GradingContext(
            loaded.task, self.sandboxes, loaded.pristine, change, conditions, proofs=self.environments.proofs
        )
        try:
            verdict = await loaded.verifier.examine(context)
        except (TaskError, SandboxError, OSError) as error:
            return _plain(Verdict(Judgement.ERROR, f"the box failed: {type(error).__name__}: {error}")), None
        except Exception as error:  # noqa: BLE001  # `_blamed` finds out whose fault it is.
            log = "".join(traceback.format_exception(error))
            reason = f"the verifier failed: {type(error).__name__}: {error}"
            return _plain(Verdict(Judgement.ERROR, reason, Evidence(log=log))), error
        self.stats.graded += 1
        cpu = max(context.cpu_seconds, default=0.0)
        return _plain(replace(verdict, evidence=replace(verdict.evidence, cpu_seconds=cpu))), None

    async def _blamed(
        self, loaded: _LoadedTask, change: Change, conditions: Conditions, verdict: Verdict, bug: Exception | None
    ) -> Verdict:
        """Find out whether a change is to blame for the error in which its grading ended, and return the final verdict.

        The reference solution is graded first. If that ends in an error too, the change is not to blame: the verdict
        remains `error`, or our `bug` is raised. Otherwise the change is graded again, at most REPEATS
        times. The first repetition that ends in no such error gives the verdict. If all do, the verdict is `fail`.
        """
        reference = await asyncio.to_thread(_reference_change, loaded)
        for _ in range(REPEATS):
            control = verdict
            if change.digest != reference.digest:
                control = (await self._examined(loaded, reference, conditions))[0]
            if control.judgement is Judgement.ERROR:
                if bug is not None:
                    raise bug
                return verdict
            verdict, bug = await self._examined(loaded, change, conditions)
            if not _may_be_blamed(verdict):
                return verdict
        return replace(verdict, judgement=Judgement.FAIL, reason=f"only this change cannot be graded: {verdict.reason}")

    async def _is_sealed(self, loaded: _LoadedTask) -> bool:
        """Return whether a verdict on this task is safe against an agent that knows the grader's source: boxes have a
        second user, who runs the code under test, and the host's system folders do not show the solution."""

        async def base_is_clean() -> tuple[bool, bool]:
            return await self.environments.base_shows_solution(loaded.task), True

        second = Feature.SECOND_USER in self.sandboxes.features
        return second and not await self._base_shows.get(loaded.gated, base_is_clean)


def _may_be_blamed(verdict: Verdict) -> bool:
    """Return whether the change may be to blame for a verdict of `error`. It is not if the host gave the run too little
    CPU time."""
    return verdict.judgement is Judgement.ERROR and not verdict.evidence.starved


def _reference_change(loaded: _LoadedTask) -> Change:
    """Return the reference solution's change, or the empty change if the task has no usable reference."""
    try:
        diff = (loaded.task.directory / REFERENCE_DIFF).read_text(encoding="utf-8")
        return loaded.pristine.change(diff, loaded.verifier.protects)
    except (OSError, UnicodeDecodeError, DiffError):
        return Change()


def _plain(verdict: Verdict) -> Verdict:
    """Return the verdict with its texts escaped and cut, so that they can be stored and shown. Names and output of the
    code under test may contain lone surrogates, and be of any length."""
    evidence = verdict.evidence
    return replace(
        verdict,
        reason=_text(verdict.reason)[:_LONGEST_REASON],
        evidence=replace(
            evidence,
            log=_text(evidence.log)[-_LONGEST_LOG:],
            failed_tests=tuple(_text(name)[:_LONGEST_REASON] for name in evidence.failed_tests),
        ),
    )


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
