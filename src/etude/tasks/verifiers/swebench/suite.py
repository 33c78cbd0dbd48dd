"""The verifier of instances whose tests one of our runners can run (`type = "swebench"`).

Rows do not contain all that a suite needs: tests may exist only as a patch, ids may be cut off, and which tests may be
skipped depends on the image. One run of the reference settles this before the first verdict; afterwards it is a suite
like any other.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from etude.tasks.change import Change, change_of
from etude.tasks.conditions import USUAL
from etude.tasks.diff import DiffError
from etude.tasks.directory import REFERENCE_DIFF
from etude.tasks.task import Task
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.swebench.hidden import TEST_PATCH, WIDE, HiddenTests, read_optional
from etude.tasks.verifiers.swebench.ids import is_open, resolved
from etude.tasks.verifiers.tests import Exam, Suite, TestsVerifier, run_exam
from etude.tasks.verifiers.tests.account import Rows, read_rows


class SwebenchVerifier(TestsVerifier):
    __test__ = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._known = HiddenTests(task)
        self._settling = asyncio.Lock()
        self._settled = False

    def protects(self, path: str) -> bool:
        return self._known.protects(path) or super().protects(path)

    async def examine(self, stand: Stand) -> Verdict:
        async with self._settling:
            if not self._settled and (problem := await self._settle(stand)):
                return Verdict(Judgement.ERROR, f"the task cannot be graded: {problem}")
            self._settled = True
        return await super().examine(stand)

    async def _settle(self, stand: Stand) -> str:
        """Complete the suite. Returns the problem that prevents it, or empty."""
        pristine = stand.pristine.files
        try:
            suite = replace(self.suite, files=self._known.laid_over(pristine))
        except DiffError as error:
            return f"{TEST_PATCH} is no diff of the workspace: {error}"
        try:
            solution = change_of(read_optional(stand.task, REFERENCE_DIFF), pristine, self.protects, WIDE)
        except DiffError as error:
            return f"{REFERENCE_DIFF} is no diff of the workspace: {error}"
        rows = await self._reference_run(await self.equipped(stand), suite, solution)
        if rows.end is None:
            return f"the tests do not come to their end with the reference{rows.broken and ': ' + rows.broken}"
        self.suite = settled(suite, rows)
        return ""

    async def _reference_run(self, stand: Stand, suite: Suite, solution: Change) -> Rows:
        """Run the tests on the reference. It is not part of the verdict, so neither its conditions nor its CPU time
        count."""
        stand = replace(stand, conditions=USUAL, cpu_seconds=[])
        # An id without parameters selects every case of the function.
        ids = {test.partition("[")[0] if is_open(test) else test for test in suite.expected}
        exam = Exam(suite.files, {test: test for test in ids})
        account = await run_exam(stand, suite.config, exam, solution)
        if account.starved:
            raise OSError("the host gave no time to the reference's run")
        return read_rows(account.rows, account.nonce)


def settled(suite: Suite, rows: Rows) -> Suite:
    """The suite with the runner's own ids, each once. A pass_to_pass test that the reference skips may be skipped."""
    fails = dict.fromkeys(name for test in suite.fail_to_pass for name in resolved(test, rows.outcomes))
    passes = dict.fromkeys(name for test in suite.pass_to_pass for name in resolved(test, rows.outcomes))
    kept = tuple(name for name in passes if name not in fails)
    idle = frozenset(name for name in kept if rows.outcomes.get(name) in ("skipped", "xfailed"))
    return replace(suite, fail_to_pass=tuple(fails), pass_to_pass=kept, may_skip=suite.may_skip | idle)
