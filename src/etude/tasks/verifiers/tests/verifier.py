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
from etude.tasks.environment.proofs import known_proof
from etude.tasks.protected_files import is_protected
from etude.tasks.task import Task
from etude.tasks.verdict import Verdict
from etude.tasks.verifiers.contract import FIRST_USER, SEALED, SECOND_USER, Stand
from etude.tasks.verifiers.tests.account import Account
from etude.tasks.verifiers.tests.agree import agree
from etude.tasks.verifiers.tests.drawing import chance_left, draw_exam
from etude.tasks.verifiers.tests.exam import Exam
from etude.tasks.verifiers.tests.pool import Pool
from etude.tasks.verifiers.tests.proof import dump_proof, follows_from, guess_of, load_proof
from etude.tasks.verifiers.tests.proving import prove
from etude.tasks.verifiers.tests.running import run_exam, with_pytest
from etude.tasks.verifiers.tests.suite import read_suite, test_files

PROOF = 4.0
"""CPU time limit of a run that proves a suite's controls, as a multiple of the suite's."""


class TestsVerifier:
    """Grades a change with an exam drawn from the hidden suite.

    Before the first verdict it runs the reference to prove the pool that exams are drawn from, or loads the proof of
    an earlier process. A task without a reference is graded with its suite unchanged, and is not sealed.
    """

    __test__ = False  # Not a test, whatever its name.

    def __init__(self, task: Task) -> None:
        self.suite = read_suite(task)
        self._hidden = sorted(self.suite.files)
        self._test_files = test_files(self.suite)
        self._equipped: dict[str, str] = {}
        self._task = task
        self.pool: Pool | None = None
        self._proving = asyncio.Lock()
        self._guess = 1.0

    @property
    def sealed(self) -> bool:
        return self._guess <= SEALED

    def recall(self, folder: Path) -> bool:
        """Whether `sealed` is known, from a proof stored in this folder of environments."""
        try:
            reference = (self._task.directory / REFERENCE_DIFF).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return True  # Known: without a reference it is not sealed.
        known = known_proof(folder, self._task, follows_from(self.suite, reference, SECOND_USER))
        if known:
            self._guess = guess_of(known[1])
            return True
        # Where boxes have one user alone, no verdict is sealed, whatever the proof says.
        return known_proof(folder, self._task, follows_from(self.suite, reference, FIRST_USER)) is not None

    def protects(self, path: str) -> bool:
        return path in self._test_files or is_protected(path) or steers_runner(path) or self._is_in_the_way(path)

    def _is_in_the_way(self, path: str) -> bool:
        """Whether a path is a hidden file, takes the place of a folder of one, or lies below one as if it were a
        folder."""
        return any(path == file or file.startswith(f"{path}/") or path.startswith(f"{file}/") for file in self._hidden)

    async def examine(self, stand: Stand) -> Verdict:
        stand = await self.equipped(stand)
        pool, rng = await self._proven(stand), random.Random(secrets.randbits(64))
        # Not in a thread: Python 3.11 parses in one thread at a time, or raises SystemError.
        exam = draw_exam(self.suite, pool, rng)
        self._guess = exam.guess
        return agree(exam, await run_exam(stand, self.suite.config, exam), stand.change.touched)

    async def equipped(self, stand: Stand) -> Stand:
        """The stand with a pytest added, where the task brings one into the image."""
        config, image = self.suite.config, stand.pristine.image
        if config.runner != "pytest" or config.pytest != "brought":
            return stand
        if image not in self._equipped:
            self._equipped[image] = (await with_pytest(stand)).pristine.image
        return replace(stand, pristine=replace(stand.pristine, image=self._equipped[image]))

    async def _proven(self, stand: Stand) -> Pool:
        async with self._proving:
            if self.pool is None:
                self.pool = await self._found_or_made(stand)
            return self.pool

    async def _found_or_made(self, stand: Stand) -> Pool:
        try:
            reference = (stand.task.directory / REFERENCE_DIFF).read_text(encoding="utf-8")
            solution = change_of(reference, stand.pristine.files, self.protects)
        except (OSError, UnicodeDecodeError, DiffError):
            return Pool()  # The gate reports a missing or wrong reference.
        there = {**stand.pristine.files, **self.suite.files}
        sources = {path: data for path, data in there.items() if path in self._test_files}
        if stand.proofs is None:
            return await self._prove(stand, sources, solution)
        asked = stand.task, stand.pristine, follows_from(self.suite, reference, stand.user)
        kept = await stand.proofs.find(*asked)
        if kept is not None and (pool := load_proof(kept, self.suite, sources)) is not None:
            return pool
        pool = await self._prove(stand, sources, solution)
        await stand.proofs.keep(*asked, dump_proof(pool, chance_left(pool)))
        return pool

    async def _prove(self, stand: Stand, sources: Mapping[str, bytes], solution: Change) -> Pool:
        # These runs are not part of the verdict, so neither their conditions nor their CPU time count.
        apart = replace(stand, conditions=USUAL, cpu_seconds=[])
        longest = PROOF * self.suite.config.seconds
        took = longest

        async def run(exam: Exam, solved: bool) -> Account:
            nonlocal took
            # Unsolved code may never end, so it gets what the solution needed and a little more.
            seconds = longest if solved else min(longest, PROOF * took + 1)
            config = self.suite.config.model_copy(update={"seconds": seconds})
            account = await run_exam(apart, config, exam, solution if solved else Change())
            if account.starved:
                raise OSError("the host gave no time to the run that proves a suite's controls")
            took = account.seconds
            return account

        return await prove(self.suite, sources, run, random.Random(secrets.randbits(64)))


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
    """Whether a file at this path may change how any runner starts or which tests it finds."""
    return bool(_STEERS.fullmatch(path))
