"""Checks that a program really uses the new interface, by running the suite once more with a useless version of it.

A test that still passes does not depend on the new interface. The tests that fail there with the reference are those
that depend on it. For a program that only pretends to call the new interface, and works without it, all of them would
pass.

tests/dulled/...  files placed over the workspace and the hidden suite for that run
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from etude.tasks.change import Change
from etude.tasks.conditions import USUAL
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.tests import Exam, Suite, agree, plain_exam, run_exam
from etude.tasks.verifiers.tests.account import Rows, read_rows
from etude.tasks.verifiers.tests.agree import FAILURES

FOLDER = "tests/dulled"
LEAST = 0.5
"""Share of the tests depending on the new interface with the reference that must also depend on it with another
solution. It is not 1, because a program may compute a simple result by itself."""


class Dulled:
    def __init__(self, suite: Suite, files: dict[str, bytes]) -> None:
        self._suite = suite
        plain = plain_exam(suite)
        self._exam = Exam({**plain.files, **files}, plain.tests, may_skip=plain.may_skip)
        self._resting: frozenset[str] | None = None
        self._finding = asyncio.Lock()

    async def examine(self, stand: Stand, reference: Change) -> Verdict:
        """Pass a change that depends on the new interface. Raises OSError if the reference's dependent tests cannot be
        determined."""
        needed = await self._found(stand, reference)
        verdict, rows = await self._run(stand, stand.change)
        if verdict.judgement in (Judgement.ERROR, Judgement.SUSPECT):
            return verdict
        resting = len(needed & _failing(rows))
        if resting >= LEAST * len(needed):
            return replace(verdict, judgement=Judgement.PASS, reason="it rests on the new interface")
        reason = f"only {resting} of {len(needed)} tests that rest on the new interface fail without it"
        return replace(verdict, judgement=Judgement.FAIL, reason=reason)

    async def _found(self, stand: Stand, reference: Change) -> frozenset[str]:
        """The tests that depend on the new interface with the reference. The result is cached, so it is taken only
        from a complete run."""
        async with self._finding:
            if self._resting is None:
                # This run is not part of the verdict, so neither its conditions nor its CPU time count.
                verdict, rows = await self._run(replace(stand, conditions=USUAL, cpu_seconds=[]), reference)
                failing = _failing(rows)
                fit = verdict.judgement is Judgement.FAIL
                if not fit or rows.outcomes.keys() != self._exam.tests.keys() or not failing:
                    raise OSError(f"{FOLDER}: with the reference no tests are known to rest on it: {verdict.reason}")
                self._resting = failing
            return self._resting

    async def _run(self, stand: Stand, change: Change) -> tuple[Verdict, Rows]:
        account = await run_exam(stand, self._suite.config, self._exam, change)
        verdict = agree(self._exam, account, stand.change.touched)
        return verdict, read_rows(account.rows, account.nonce)


def _failing(rows: Rows) -> frozenset[str]:
    """Tests that failed. Tests that did not run to their end are not counted."""
    return frozenset(test for test, outcome in rows.outcomes.items() if outcome in FAILURES)
