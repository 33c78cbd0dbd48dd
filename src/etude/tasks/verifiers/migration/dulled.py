"""Does the new interface do the work? The suite is run once more where the new interface answers nothing of use.

A test that passes there does not rest on it. So the tests that fail there with the reference are what a migration is
asked for: of a program that calls the new interface for show, and works without it, all of them pass.

tests/dulled/...  laid over the workspace and the hidden suite for that run
"""

from __future__ import annotations

from etude.tasks.change import Change
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.tests import Exam, Suite, plain_exam, run_exam
from etude.tasks.verifiers.tests.account import read_rows
from etude.tasks.verifiers.tests.running import with_pytest

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

    async def problem(self, stand: Stand, reference: Change) -> str:
        """Why the change is none that rests on the new interface; empty if it is one."""
        if self._suite.config.pytest == "brought" and self._suite.config.runner == "pytest":
            stand = await with_pytest(stand)
        if self._resting is None:
            self._resting = await self._failing(stand, reference)
            if not self._resting:
                raise OSError(f"{FOLDER}: with the reference no test rests on the new interface")
        resting = len(self._resting & await self._failing(stand, stand.change))
        if resting >= LEAST * len(self._resting):
            return ""
        return f"only {resting} of {len(self._resting)} tests that rest on the new interface fail without it"

    async def _failing(self, stand: Stand, change: Change) -> frozenset[str]:
        account = await run_exam(stand, self._suite.config, self._exam, change)
        rows = read_rows(account.rows, account.nonce)
        return frozenset(test for test in self._exam.tests if rows.outcomes.get(test) != "passed")
