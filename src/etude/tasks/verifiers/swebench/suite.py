"""The verifier of SWE-bench instances with tests that one of Étude's test runners can run (`type = "swebench"`).

SWE-bench rows are incomplete: tests may exist only as a patch, ids may be truncated, and which tests may be skipped
depends on the image. Before the first verdict, one test run with the reference solution fills these gaps. Afterwards
the suite is graded like any other hidden suite.
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
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.swebench.hidden import TEST_PATCH, WIDE, HiddenTests, read_optional
from etude.tasks.verifiers.swebench.ids import is_ambiguous, runner_ids
from etude.tasks.verifiers.tests import Exam, Suite, TestsVerifier, run_exam
from etude.tasks.verifiers.tests.run_output import Rows, read_rows


class SwebenchVerifier(TestsVerifier):
    __test__ = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._hidden_tests = HiddenTests(task)
        self._completing = asyncio.Lock()
        self._complete = False

    def protects(self, path: str) -> bool:
        return self._hidden_tests.protects(path) or super().protects(path)

    async def examine(self, context: GradingContext) -> Verdict:
        async with self._completing:
            if not self._complete and (problem := await self._complete_suite(context)):
                return Verdict(Judgement.ERROR, f"the task cannot be graded: {problem}")
            self._complete = True
        return await super().examine(context)

    async def _complete_suite(self, context: GradingContext) -> str:
        """Add the hidden files to `self.suite`, and replace its ids by the runner's. Return the problem, if any."""
        pristine = context.pristine.files
        try:
            suite = replace(self.suite, files=self._hidden_tests.test_files_over(pristine))
        except DiffError as error:
            return f"{TEST_PATCH} is no diff of the workspace: {error}"
        try:
            solution = change_of(read_optional(context.task, REFERENCE_DIFF), pristine, self.protects, WIDE)
        except DiffError as error:
            return f"{REFERENCE_DIFF} is no diff of the workspace: {error}"
        rows = await self._reference_run(await self.with_brought_pytest(context), suite, solution)
        if rows.end is None:
            return f"the tests do not come to their end with the reference{rows.broken and ': ' + rows.broken}"
        self.suite = with_runner_ids(suite, rows)
        return ""

    async def _reference_run(self, context: GradingContext, suite: Suite, solution: Change) -> Rows:
        """Run the suite with the reference solution. The run is not part of a verdict. So it uses the usual conditions,
        not those of the grading, and its CPU time is not recorded."""
        context = replace(context, conditions=USUAL, cpu_seconds=[])
        # An id without parameters selects every case of the function.
        ids = {test.partition("[")[0] if is_ambiguous(test) else test for test in suite.expected}
        exam = Exam(suite.files, {test: test for test in ids})
        output = await run_exam(context, suite.config, exam, solution)
        if output.starved:
            raise OSError("the host gave the reference's run too little CPU time")
        return read_rows(output.rows, output.nonce)


def with_runner_ids(suite: Suite, rows: Rows) -> Suite:
    """Return the suite with the runner's own ids, without duplicates. `rows` are of a run with the reference solution:
    a pass_to_pass test that was skipped or xfailed there is added to `may_skip`."""
    fails = dict.fromkeys(name for test in suite.fail_to_pass for name in runner_ids(test, rows.outcomes))
    passes = dict.fromkeys(name for test in suite.pass_to_pass for name in runner_ids(test, rows.outcomes))
    kept = tuple(name for name in passes if name not in fails)
    idle = frozenset(name for name in kept if rows.outcomes.get(name) in ("skipped", "xfailed"))
    return replace(suite, fail_to_pass=tuple(fails), pass_to_pass=kept, may_skip=suite.may_skip | idle)
