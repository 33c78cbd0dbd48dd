"""The verifier of tasks with a hidden test suite (`type = "tests"`)."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from etude.tasks.change import Change, change_of
from etude.tasks.conditions import USUAL
from etude.tasks.diff import DiffError
from etude.tasks.directory import REFERENCE_DIFF
from etude.tasks.environment.stored_facts import known_proof
from etude.tasks.protected_files import is_protected
from etude.tasks.task import Task
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers.contract import FIRST_USER, SEALED, SECOND_USER, GradingContext
from etude.tasks.verifiers.tests import packages
from etude.tasks.verifiers.tests.drawing import chance_left, draw_exam
from etude.tasks.verifiers.tests.exam import Exam, plain_exam
from etude.tasks.verifiers.tests.judging import judge_run
from etude.tasks.verifiers.tests.pool import Pool
from etude.tasks.verifiers.tests.proof import dump_proof, guess_of, load_proof, proof_inputs
from etude.tasks.verifiers.tests.proving import prove
from etude.tasks.verifiers.tests.remarks import without_remarks
from etude.tasks.verifiers.tests.run_output import RunOutput
from etude.tasks.verifiers.tests.running import run_exam
from etude.tasks.verifiers.tests.suite import is_in_the_way, read_suite, test_files

PROOF = 4.0
"""CPU time limit of a trial run with the solution, as a multiple of the suite's own limit. A trial run without the
solution may take the same multiple of the time that the solution took, plus a second."""


class TestsVerifier:
    """Grades a change with the hidden suite, in which some tests are altered or their expected values withheld.

    Before the first verdict, trial runs show what can be altered or withheld, unless an earlier process has stored
    this. Without a reference solution, the suite stays unchanged and verdicts are not sealed.
    """

    __test__ = False  # pytest must not collect this class.

    def __init__(self, task: Task) -> None:
        self.suite = read_suite(task)
        self._test_files = test_files(self.suite)
        self._images_with_pytest: dict[str, str] = {}
        self._task = task
        self.pool: Pool | None = None
        self._proving = asyncio.Lock()
        self._guess = 1.0

    @property
    def sealed(self) -> bool:
        return self._guess <= SEALED

    def load_stored_proof(self, folder: Path) -> bool:
        try:
            reference = (self._task.directory / REFERENCE_DIFF).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return True  # Without a reference, the verdicts are known not to be sealed.
        known = known_proof(folder, self._task, self._proof_inputs(reference, SECOND_USER))
        if known:
            self._guess = guess_of(known[1])
            return True
        # If boxes have only one user, no verdict is sealed, whatever the proof says.
        return known_proof(folder, self._task, self._proof_inputs(reference, FIRST_USER)) is not None

    def protects(self, path: str) -> bool:
        return (
            path in self._test_files
            or is_protected(path)
            or steers_runner(path)
            or is_in_the_way(path, self.suite.files)
        )

    async def examine(self, context: GradingContext) -> Verdict:
        context = await self.with_brought_pytest(context)
        pool, rng = await self._proven_pool(context), random.Random(secrets.randbits(64))
        # This runs in the event loop's thread: Python 3.11 parses in one thread at a time, or raises SystemError.
        exam = draw_exam(self.suite, pool, rng)
        self._guess = exam.guess
        return judge_run(exam, await run_exam(context, self.suite.config, exam), context.change.touched)

    async def with_brought_pytest(self, context: GradingContext) -> GradingContext:
        """Return the context with pytest added to the image, if the task's settings ask for it."""
        config, image = self.suite.config, context.pristine.image
        if config.runner != "pytest" or config.pytest != "brought":
            return context
        if image not in self._images_with_pytest:
            # The added layer is the same for all images and is reused.
            added = await context.sandboxes.add_image(packages.pytest_files(), base=image, workdir=packages.FOLDER)
            self._images_with_pytest[image] = added
        return replace(context, pristine=replace(context.pristine, image=self._images_with_pytest[image]))

    async def _proven_pool(self, context: GradingContext) -> Pool:
        async with self._proving:
            if self.pool is None:
                self.pool = await self._load_or_prove(context)
            return self.pool

    def _proof_inputs(self, reference: str, user: str) -> str:
        return proof_inputs(self.suite, reference, self._task.instruction, user)

    async def _load_or_prove(self, context: GradingContext) -> Pool:
        try:
            reference = (context.task.directory / REFERENCE_DIFF).read_text(encoding="utf-8")
            solution = change_of(reference, context.pristine.files, self.protects)
        except (OSError, UnicodeDecodeError, DiffError):
            return Pool()  # The gate reports a missing or wrong reference.
        there = {**context.pristine.files, **self.suite.files}
        whole = {path: data for path, data in there.items() if path in self._test_files}
        hidden = {path: data for path, data in whole.items() if path in self.suite.files}
        bare = {**whole, **{path: without_remarks(path, data) for path, data in hidden.items()}}
        if context.proofs is None:
            return await self._prove(context, bare, whole, solution)
        asked = context.task, context.pristine, self._proof_inputs(reference, context.user)
        kept = await context.proofs.find(*asked)
        for sources in (bare, whole):
            if kept is not None and (pool := load_proof(kept, self.suite, sources)) is not None:
                return pool
        pool = await self._prove(context, bare, whole, solution)
        await context.proofs.keep(*asked, dump_proof(pool, chance_left(pool)))
        return pool

    async def _prove(
        self, context: GradingContext, bare: Mapping[str, bytes], whole: Mapping[str, bytes], solution: Change
    ) -> Pool:
        """Run the trial runs and return the pool: the tests in which a grading may alter or withhold expected values.

        `bare` and `whole` are the test files without and with their remarks (comments and docstrings). The pool is made
        from `bare` if the solution passes the suite in that form."""
        # These runs are not part of the verdict: they use the usual conditions, and their CPU time is not recorded.
        apart = replace(context, conditions=USUAL, cpu_seconds=[])
        longest = PROOF * self.suite.config.seconds
        took = longest

        async def run(exam: Exam, solved: bool) -> RunOutput:
            nonlocal took
            # Unsolved code may never end, so it gets a multiple of the time that the solution needed.
            seconds = longest if solved else min(longest, PROOF * took + 1)
            config = self.suite.config.model_copy(update={"seconds": seconds})
            output = await run_exam(apart, config, exam, solution if solved else Change())
            if output.starved:
                raise OSError("the host gave too little CPU time to the run that proves a suite's controls")
            took = output.seconds
            return output

        suite = self.suite.with_sources(bare)
        if bare != whole:
            exam = plain_exam(suite)
            # A test may need its remarks, for example if it reads its own source.
            if judge_run(exam, await run(exam, True)).judgement is not Judgement.PASS:
                suite, bare = self.suite, whole
        # In the order in which they count as known: the instruction, what the reference changes, and small files first.
        workspace = context.pristine.files
        order = sorted(workspace, key=lambda path: (path not in solution.files, len(workspace[path])))
        shown = {"": context.task.instruction.encode("utf-8", "replace"), **{path: workspace[path] for path in order}}
        return await prove(suite, bare, run, random.Random(secrets.randbits(64)), shown)


_STEERS = re.compile(
    r"""(.*/)? (
        \.?(mocharc|noderc).*
        | (sitecustomize|usercustomize|conftest) (/.* | \.(py|so|.*\.so))
        | [^/]+\.(dist-info|egg-info|egg-link)(/.*)?
        | (\.venv|venv|node_modules|site-packages)/.*
    )""",
    re.VERBOSE,
)


def steers_runner(path: str) -> bool:
    """Return whether a file at this path may change how any runner starts or which tests it finds."""
    return bool(_STEERS.fullmatch(path))
