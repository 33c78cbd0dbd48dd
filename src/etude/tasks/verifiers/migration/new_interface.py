"""Checks that a program really uses the new interface, by running the hidden suite once more with a useless stub of
that interface.

A test depends on the new interface if it fails with the stub. A run with the reference solution shows which tests
depend on it. If a program only pretends to use the new interface, these tests still pass with the stub.

tests/dulled/...  the stub: files placed over the workspace and the hidden suite for these runs
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from etude.tasks.change import Change
from etude.tasks.conditions import USUAL
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.tests import Exam, Suite, judge_run, plain_exam, run_exam
from etude.tasks.verifiers.tests.judging import FAILURES
from etude.tasks.verifiers.tests.run_output import Rows, read_rows

FOLDER = "tests/dulled"
LEAST = 0.5
"""Of the tests that depend on the new interface with the reference solution, at least this share must depend on it with
the agent's program too. It is less than 1, because a program may compute a simple result without the interface."""


class StubbedInterfaceCheck:
    def __init__(self, suite: Suite, files: dict[str, bytes]) -> None:
        self._suite = suite
        plain = plain_exam(suite)
        self._exam = Exam({**plain.files, **files}, plain.tests, may_skip=plain.may_skip)
        self._dependent: frozenset[str] | None = None
        self._dependent_lock = asyncio.Lock()

    async def examine(self, context: GradingContext, reference: Change) -> Verdict:
        """Return a verdict that passes if the agent's program depends on the new interface. Raises OSError if a run
        with the reference solution does not show which tests depend on it."""
        needed = await self._dependent_tests(context, reference)
        verdict, rows = await self._run(context, context.change)
        if verdict.judgement in (Judgement.ERROR, Judgement.SUSPECT):
            return verdict
        dependent = len(needed & _failing(rows))
        if dependent >= LEAST * len(needed):
            return replace(verdict, judgement=Judgement.PASS, reason="it depends on the new interface")
        reason = f"only {dependent} of {len(needed)} tests that depend on the new interface fail without it"
        return replace(verdict, judgement=Judgement.FAIL, reason=reason)

    async def _dependent_tests(self, context: GradingContext, reference: Change) -> frozenset[str]:
        """Return the tests that fail with the reference solution and the stub. The result is cached, and a wrong one
        would spoil all later gradings. So this raises OSError if the run is incomplete or no test fails."""
        async with self._dependent_lock:
            if self._dependent is None:
                # This run is not part of the verdict: it uses the usual conditions, and its CPU time is not recorded.
                verdict, rows = await self._run(replace(context, conditions=USUAL, cpu_seconds=[]), reference)
                failing = _failing(rows)
                fit = verdict.judgement is Judgement.FAIL
                if not fit or rows.outcomes.keys() != self._exam.tests.keys() or not failing:
                    raise OSError(
                        f"{FOLDER}: expected tests that fail with the stub and the reference, found none: "
                        f"{verdict.reason}"
                    )
                self._dependent = failing
            return self._dependent

    async def _run(self, context: GradingContext, change: Change) -> tuple[Verdict, Rows]:
        output = await run_exam(context, self._suite.config, self._exam, change)
        verdict = judge_run(self._exam, output, context.change.touched)
        return verdict, read_rows(output.rows, output.nonce)


def _failing(rows: Rows) -> frozenset[str]:
    """Return the tests that failed. Tests that did not run to their end are not counted."""
    return frozenset(test for test, outcome in rows.outcomes.items() if outcome in FAILURES)
