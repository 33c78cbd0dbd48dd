"""Does the new interface do the work? The suite is run once more where the new interface answers nothing of use.

A test that passes there does not rest on it. So the tests that fail there with the reference are what a migration is
asked for: of a program that calls the new interface for show, and works without it, all of them pass.

tests/dulled/...  laid over the workspace and the hidden suite for that run
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
"""Of the tests that rest on the new interface with the reference, how many must with another solution: a program may
know a simple answer by itself."""


class Dulled:
    def __init__(self, suite: Suite, files: dict[str, bytes]) -> None:
        self._suite = suite
        plain = plain_exam(suite)
        self._exam = Exam({**plain.files, **files}, plain.tests, may_skip=plain.may_skip)
        self._resting: frozenset[str] | None = None
        self._finding = asyncio.Lock()

    async def examine(self, stand: Stand, reference: Change) -> Verdict:
        """A pass for a change that rests on the new interface. OSError if that cannot be found out of the reference."""
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
        """Kept, so it is taken from nothing but a run that came to its end."""
        async with self._finding:
            if self._resting is None:
                # Nothing of this is part of the verdict: not its conditions, not what it takes.
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
    """What was not run to its end says nothing."""
    return frozenset(test for test, outcome in rows.outcomes.items() if outcome in FAILURES)
