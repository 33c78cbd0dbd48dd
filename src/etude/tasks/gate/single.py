"""Gates one task, that is, grades several diffs to find out whether the task may be used. Decides which diffs are
graded, under which conditions, and how often a grading is retried after an infrastructure fault.

Every grading runs its tests anew, in a fresh box of the pristine environment. An infrastructure fault decides nothing:
the grading is retried a few times, with growing pauses.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from etude.harness.workspaces.result_cache import Memo
from etude.sandbox.contract import SandboxError, Sandboxes
from etude.tasks.conditions import GATE, USUAL, Conditions
from etude.tasks.directory import REFERENCE_DIFF, gated_digest
from etude.tasks.gate.admission import GradingQueue
from etude.tasks.gate.result import NOTHING, REFERENCE, GateResult, Run, source_of_task
from etude.tasks.grader import Grader
from etude.tasks.limits import limits_from
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers import open_verifier, verifier_name

ATTEMPTS, PAUSE = 3, 0.5
"""Attempts at a grading that ends in an infrastructure fault, and the seconds before the second attempt. Each later
pause is twice as long as the one before."""
_NO_TASK_CODE = frozenset(("cases", "mutation", "documentation", "review", "script", "dockerfile", "workflow"))
"""Verifiers that run no code from the task in the box, except the code under test."""
Cheats = Callable[[Task], Awaitable[Sequence[str]]]
"""Runs all cheats that fit a task in its environment, and returns the names of those that succeeded. A cheat is an
agent that tries to pass without solving anything."""


@dataclass(slots=True)
class Gate:
    """Finds out whether tasks may be used. One Gate, with its caches, serves all tasks that a process gates."""

    grader: Grader
    conditions: Sequence[Conditions] = GATE
    """Conditions (time zone, test order and so on) under which the reference solution is graded, once under each."""
    nothing: Conditions = USUAL
    """Conditions (time zone, test order and so on) under which the empty diff, and solutions other than the reference,
    are graded."""
    cheats: Cheats | None = None
    scan: bool = True
    """Whether to search the environment for the solution before grading."""
    queue: GradingQueue = field(default_factory=GradingQueue)
    _successful_cheats: Memo[str, tuple[str, ...]] = field(default_factory=lambda: Memo(8192))

    async def examine(self, task: Task) -> GateResult:
        """Run the gate's checks on one task. Faults become part of the result; no exception is raised."""
        spent: list[float] = []
        digest, source = "", source_of_task(task)
        try:
            digest = await asyncio.to_thread(gated_digest, task)
            solution, others = reference_diff(task), other_diffs(task)
            open_verifier(task)
            verdicts, leaks = await self._grade_all(task, solution, others, spent)
            wanted = self.cheats and _all_as_expected(verdicts) and not leaks
            cheats = await self._cheats_in(task, spent) if wanted else ()
        except TaskError as error:
            return GateResult(task.id, digest, source, broken=str(error), seconds=round(sum(spent), 4))
        except (SandboxError, OSError) as error:
            run = Run("environment", USUAL.name, Judgement.ERROR, f"{type(error).__name__}: {error}")
            return GateResult(task.id, digest, source, (run,), seconds=round(sum(spent), 4))
        except Exception as error:  # noqa: BLE001 - A bug that one task triggers must not end the others' gate.
            run = Run("gate", USUAL.name, Judgement.ERROR, _describe_error(error))
            return GateResult(task.id, digest, source, (run,), seconds=round(sum(spent), 4))
        runs = tuple(run for run, _ in verdicts)
        valid = [verdict.evidence for run, verdict in verdicts if verdict.passed and run.what != NOTHING]
        return GateResult(
            task.id,
            digest,
            source,
            runs,
            leaks,
            cheats,
            sealed=bool(valid) and all(seen.sealed for seen in valid),
            controls=sum(seen.controls for seen in valid),
            withheld=sum(seen.withheld for seen in valid),
            limits=limits_from(
                max((seen.seconds for seen in valid), default=0.0),
                max((seen.cpu_seconds for seen in valid), default=0.0),
                max((seen.memory_bytes for seen in valid), default=0),
            ),
            seconds=round(sum(spent), 4),
        )

    async def _grade_all(
        self, task: Task, solution: str, others: dict[str, str], spent: list[float]
    ) -> tuple[list[tuple[Run, Verdict]], tuple[str, ...]]:
        """Run all gradings of a task. Return them, and the files of its environment that show the solution (leaks).

        The cheap checks come first, and if they show that the task is unfit, nothing else is run. Runs that need a busy
        machine come last, so that several tasks can share one artificial CPU load.
        """
        leaks: tuple[str, ...] = ()
        if self.scan:
            async with self._turn(spent):
                leaks = tuple(map(str, (await self.grader.environments.prove(task)).findings))
        found = await self._grade(task, NOTHING, "", self.nothing, spent)
        if leaks or found[-1][1].judgement is not Judgement.FAIL:
            return found, leaks
        wanted = [(REFERENCE, solution, conditions) for conditions in self.conditions]
        wanted += [(name, diff, self.nothing) for name, diff in others.items()]
        for what, diff, conditions in sorted(wanted, key=lambda run: run[2].busy):
            found += await self._grade(task, what, diff, conditions, spent)
        return found, leaks

    async def _grade(
        self, task: Task, what: str, diff: str, conditions: Conditions, spent: list[float]
    ) -> list[tuple[Run, Verdict]]:
        """Grade one diff, and repeat the grading after an infrastructure fault. If a run timed out under conditions
        that can themselves cause a timeout, it is set aside, and repeated under their fallback."""
        for tried in range(1, ATTEMPTS + 1):
            async with self._turn(spent, busy=conditions.busy):
                verdict = await self.grader.grade(task, diff, fresh=True, conditions=conditions)
            if verdict.judgement is not Judgement.ERROR or tried == ATTEMPTS:
                break
            await asyncio.sleep(PAUSE * 2 ** (tried - 1))
        seen = verdict.evidence
        run = Run(
            what,
            conditions.name,
            verdict.judgement,
            verdict.reason,
            round(seen.seconds, 4),
            round(seen.cpu_seconds, 4),
            seen.memory_bytes,
            tried,
        )
        forged = verdict.judgement is Judgement.SUSPECT
        if conditions.fallback is None or run.as_expected or forged or not seen.timed_out:
            return [(run, verdict)]
        aside = replace(run, set_aside=True)
        return [(aside, verdict), *await self._grade(task, what, diff, conditions.fallback, spent)]

    @asynccontextmanager
    async def _turn(self, spent: list[float], *, busy: bool = False) -> AsyncIterator[None]:
        """Hold a slot of the queue, and append to `spent` how many seconds the block took, without the waiting."""
        async with self.queue.turn(busy=busy):
            began = time.monotonic()
            try:
                yield
            finally:
                spent.append(time.monotonic() - began)

    async def _cheats_in(self, task: Task, spent: list[float]) -> tuple[str, ...]:
        cheats = self.cheats
        assert cheats is not None
        prepared = await self.grader.environments.prepare(task)

        async def run() -> tuple[tuple[str, ...], bool]:
            async with self._turn(spent):
                return tuple(await cheats(task)), True

        return await self._successful_cheats.get(_cheats_key(task) if prepared.bare else prepared.image, run)


async def gate(task: Task, sandboxes: Sandboxes, *, runs: int = 3, grader: Grader | None = None) -> GateResult:
    return await Gate(grader or Grader(sandboxes), conditions_of(runs)).examine(task)


def conditions_of(runs: int) -> list[Conditions]:
    """Return the conditions of `runs` runs of the reference: those of `GATE` in turn, over and over."""
    return [GATE[index % len(GATE)] for index in range(runs)]


def reference_diff(task: Task) -> str:
    return _read_diff(task.directory / REFERENCE_DIFF, "the reference solution")


def other_diffs(task: Task) -> dict[str, str]:
    """Return the task's valid solutions other than the reference, as diffs by file name."""
    paths = sorted((task.directory / REFERENCE_DIFF).parent.glob("*.diff"))
    others = (path for path in paths if path != task.directory / REFERENCE_DIFF)
    return {path.name: _read_diff(path, "another solution") for path in others}


def _read_diff(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: expected {what}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: expected UTF-8 text") from error


def _cheats_key(task: Task) -> str:
    """Return the cache key of a task without an image of its own. It is equal for tasks in which each cheat has the
    same chances: the same source, verifier and runner and, if the verifier runs code from the task, the same family (a
    package, a repository)."""
    name = verifier_name(task)
    parts = (name, task.verifier.get("runner"), source_of_task(task), "" if name in _NO_TASK_CODE else task.family)
    return f"host {parts}"


def _describe_error(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"


def _all_as_expected(verdicts: list[tuple[Run, Verdict]]) -> bool:
    return all(run.as_expected for run, _ in verdicts if not run.set_aside)
