"""The verifier of tasks in which the agent writes tests (`type = "mutation"`).

The agent may change only tests, not the library. The tests must pass on the original library, and on rewrites of it
that behave the same. Tests that fail on a rewrite inspect the library's source, and get the verdict `suspect`. Then the
tests run on every mutant of the library, each in its own box.

The outcomes can be trusted because the tests are written in a restricted language (`language.py`). A task may allow any
code (`any_code = true`). Then only the rewrites protect against tests that inspect the source, and the verdict is not
sealed: it could be forged.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.change import Change
from etude.tasks.task import Task
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import SEALED, GradingContext
from etude.tasks.verifiers.inputs import read_table
from etude.tasks.verifiers.language import module_name, own_names, problems
from etude.tasks.verifiers.mutation.mutants import FILE, load_mutants
from etude.tasks.verifiers.mutation.rewrites import rewritten
from etude.tasks.verifiers.tests import Exam, SuiteConfig, judge_run, run_exam
from etude.tasks.verifiers.tests.run_output import read_rows

_AT_ONCE = 2


class MutationConfig(BaseModel):
    """The settings in [metadata.etude.verifier] of a task with `type = "mutation"`."""

    model_config = ConfigDict(strict=True, frozen=True)

    threshold: float = Field(0.8, gt=0, le=1)
    """Share of the mutants on which the tests must fail."""
    folder: str = Field("tests", min_length=1)
    """Folder of the agent's tests. The Python files outside this folder are the library."""
    rewrites: int = Field(4, ge=1)
    """Number of rewrites of the library, equivalent to the original, on which the tests must pass."""
    any_code: bool = False
    """Whether tests may contain any Python code. Verdicts are then not sealed: they could be forged."""
    seconds: float = Field(10.0, gt=0)
    """CPU time limit of one run of all tests, in seconds."""
    memory_mb: int = Field(256, ge=64)


class MutationVerifier:
    def __init__(self, task: Task) -> None:
        self.config = read_table(task, MutationConfig)
        self.mutants = load_mutants(task.directory / FILE)
        self._needed = math.ceil(self.config.threshold * len(self.mutants))

    @property
    def sealed(self) -> bool:
        likely = chance(len(self.mutants), self._needed, 1 + self.config.rewrites)
        return not self.config.any_code and likely <= SEALED

    def protects(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return folder != self.config.folder or not name.endswith(".py")

    async def examine(self, context: GradingContext) -> Verdict:
        written = {path: data for path, data in context.files.items() if not self.protects(path)}
        suites = sorted(path for path in written if path.rpartition("/")[2].startswith("test"))
        library = {path: data for path, data in context.pristine.files.items() if self._of_library(path)}
        touched = Evidence(touched_protected=context.change.touched)
        if not suites:
            return Verdict(Judgement.FAIL, f"there are no tests in {self.config.folder}/test*.py", touched)
        if found := self._refused(written, library):
            return Verdict(Judgement.FAIL, f"tests of this task may not contain this: {found[0]}", touched)
        rng = random.Random(secrets.randbits(64))
        runs = _Runs(context, self.config, [module_name(path) for path in suites])
        true = await runs.run({})
        if not true.passed:
            return replace(true, reason=f"on the true library: {true.reason}")
        for _ in range(self.config.rewrites):
            verdict = await runs.run({path: rewritten(data.decode(), rng).encode() for path, data in library.items()})
            if verdict.judgement is Judgement.FAIL:
                reason = (
                    f"the tests fail on a library that behaves the same but is written differently: {verdict.reason}"
                )
                return replace(verdict, judgement=Judgement.SUSPECT, reason=reason)
            if not verdict.passed:
                return verdict
        verdicts = await asyncio.gather(*(runs.run({m.path: m.source.encode()}) for m in self.mutants))
        return self._score(true, verdicts)

    def _score(self, true: Verdict, verdicts: list[Verdict]) -> Verdict:
        for verdict in verdicts:
            if verdict.judgement in (Judgement.ERROR, Judgement.SUSPECT):
                return verdict
        pairs = list(zip(self.mutants, verdicts, strict=True))
        missed = tuple(f"{m.path}:{m.line}: {m.fault}" for m, verdict in pairs if verdict.passed)
        killed, count = len(pairs) - len(missed), len(pairs)
        evidence = replace(
            true.evidence,
            tests_expected=count,
            tests_passed=killed,
            failed_tests=missed,
            controls=self.config.rewrites,
            seconds=true.evidence.seconds + sum(verdict.evidence.seconds for verdict in verdicts),
            score=killed / count,
        )
        judgement = Judgement.PASS if killed >= self._needed else Judgement.FAIL
        return Verdict(judgement, f"{killed} of {count} mutants detected", evidence)

    def _of_library(self, path: str) -> bool:
        return path.endswith(".py") and not path.startswith(f"{self.config.folder}/")

    def _refused(self, written: Mapping[str, bytes], library: Mapping[str, bytes]) -> list[str]:
        if self.config.any_code:
            return []
        names = {module_name(path): own_names(data.decode()) for path, data in library.items()}
        return [
            problem
            for path, data in sorted(written.items())
            for problem in problems(data.decode("utf-8", "replace"), names, path)
        ]


class _Runs:
    """Runs the tests of one change on different versions of the library, each in its own box."""

    def __init__(self, context: GradingContext, config: MutationConfig, suites: list[str]) -> None:
        self._stand = context
        self._suite = SuiteConfig(runner="unittest", seconds=config.seconds, memory_mb=config.memory_mb)
        self._suites = {suite: suite for suite in suites}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def run(self, library: Mapping[str, bytes]) -> Verdict:
        """Run the tests with the files in `library` replaced. A pass means that there are tests and all passed."""
        change = Change({**self._stand.change.files, **library}, self._stand.change.touched)
        async with self._turn:
            output = await run_exam(self._stand, self._suite, Exam({}, self._suites), change)
        rows = read_rows(output.rows, output.nonce)
        found = {test: test for test in rows.outcomes}
        verdict = judge_run(Exam({}, found), output, self._stand.change.touched)
        if verdict.passed and not found:
            return replace(verdict, judgement=Judgement.FAIL, reason="there are no tests")
        return verdict


def chance(mutants: int, needed: int, others: int) -> float:
    """Return the probability that tests with random outcomes pass the task: that they fail on none of the `others` (the
    library and its rewrites) and on at least `needed` mutants, at the failure rate that makes this most likely."""

    def at(rate: float) -> float:
        enough = (math.comb(mutants, n) * rate**n * (1 - rate) ** (mutants - n) for n in range(needed, mutants + 1))
        return float((1 - rate) ** others * sum(enough))

    return max(at(percent / 100) for percent in range(101))
