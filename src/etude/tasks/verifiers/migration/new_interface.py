"""Checks that a program really uses the new interface, by running the suite once more with a useless version of it.

A test that still passes in that run does not depend on the new interface. With the reference, the tests that fail are
those that depend on it. For a program that only pretends to call the new interface, and works without it, all of them
would pass.

tests/dulled/...  files placed over the workspace and the hidden suite for that run
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
"""Share of the tests that depend on the new interface with the reference, which must also depend on it with another
solution. It is not 1, because a program may compute a simple result by itself."""


class StubbedInterfaceCheck:
    """Checks that a program's tests fail when the new interface is replaced by a useless stub."""

    def __init__(self, suite: Suite, files: dict[str, bytes]) -> None:
        self._suite = suite
        plain = plain_exam(suite)
        self._exam = Exam({**plain.files, **files}, plain.tests, may_skip=plain.may_skip)
        self._dependent: frozenset[str] | None = None
        self._dependent_lock = asyncio.Lock()

    async def examine(self, context: GradingContext, reference: Change) -> Verdict:
        """Return a passing verdict for a change that depends on the new interface. Raises OSError if the reference's
        dependent tests cannot be determined."""
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
        """Return the tests that depend on the new interface with the reference. The result is cached, so it is taken
        only from a complete run."""
        async with self._dependent_lock:
            if self._dependent is None:
                # This run is not part of the verdict, so neither its conditions nor its CPU time count.
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
