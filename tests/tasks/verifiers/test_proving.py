"""What is proven in real boxes: only what fails with the reference, and does not betray itself without it."""

from __future__ import annotations

import ast
import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.sandbox.contract import BoxSpec, Sandboxes
from etude.tasks import Environments, Grader, GradingContext, Judgement, reference_diff
from etude.tasks.change import Change, change_of
from etude.tasks.verifiers.contract import SEALED
from etude.tasks.verifiers.tests import Exam, Suite, SuiteConfig, TestsVerifier, read_suite, suite_files, verifier
from etude.tasks.verifiers.tests.drawing import chance_left
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool, alterable_tests
from etude.tasks.verifiers.tests.proving import prove
from etude.tasks.verifiers.tests.run_output import RunOutput

from . import projects

WRONG = "def double(n):\n    return n + n + 1\n\n\ndef text(n):\n    return 'n is ' + str(n + 1)\n"
RIGHT = WRONG.replace("n + n + 1", "n + n").replace("str(n + 1)", "str(n)")
TESTS = """
import datetime
import sys
import unittest

from a import double, text


class T(unittest.TestCase):
    def test_two_sites(self):
        self.assertIn("n is", text(4))
        self.assertIn("4", text(4))

    def test_branch(self):
        if sys.platform == "win32":
            self.assertEqual(double(1), 3)
        self.assertIn("6", text(6))

    def test_own_name(self):
        self.assertEqual(self.id().rpartition(".")[2], "test_own_name")
        self.assertIn("6", text(6))

    def test_not_plain(self):
        self.assertEqual([datetime.date(2020, 1, double(2))].count(datetime.date(2020, 1, 4)), 1)
        self.assertEqual(double(3), 6)

    def test_wide(self):
        self.assertGreater(double(50), 20)
"""
NAMES = ["two_sites", "branch", "own_name", "not_plain"]


TABLES = """
import unittest

from a import double, text

DOUBLES = [(0, 0), (21, 42), (17, 34)]
OTHERS = {3: "n is 3", 5: "n is 5"}


class T(unittest.TestCase):
    def test_module_table(self):
        for given, wanted in DOUBLES:
            with self.subTest(given=given, wanted=wanted):
                self.assertEqual(double(given), wanted)

    def test_beside_another(self):
        for given, wanted in OTHERS.items():
            self.assertEqual(text(given), wanted)
        self.assertIn("7", text(7))

    def test_its_own_answer(self):
        given, wanted = 4, 8
        self.assertEqual(double(given), wanted)

    def test_wide(self):
        self.assertGreater(double(50), 20)
"""


async def proven(sandboxes: Sandboxes, folder: Path, tests: str = TESTS, names: Sequence[str] = NAMES) -> Pool:
    reference = projects.diff(WRONG, RIGHT, "a.py")
    ids = [f"tests.test_a.T.test_{name}" for name in names]
    files = suite_files({"tests/test_a.py": tests.encode()}, ids, ["tests.test_a.T.test_wide"])
    task = projects.task(folder / "task", files, {"a.py": WRONG}, reference, {"runner": "unittest"})
    verifier = TestsVerifier(task)
    assert not verifier.sealed, "nothing is proven yet"
    context = GradingContext(task, sandboxes, await Environments(sandboxes).prepare(task), Change())
    verdicts = await asyncio.gather(*(verifier.examine(context) for _ in range(2)))
    assert [verdict.judgement for verdict in verdicts] == [Judgement.FAIL] * 2
    return verifier.pool


async def test_what_is_proven(sandboxes: Sandboxes, tmp_path: Path) -> None:
    pool = await proven(sandboxes, tmp_path)
    found: dict[str, AlterableTest] = {asked.function.path[-1].removeprefix("test_"): asked for asked in pool.alterable}
    source = pool.sources["tests/test_a.py"]

    def altered(name: str) -> set[bytes]:
        return {source[slice(*literal)] for literal, _ in found[name].alterations}

    # Without a solution the first assertion holds: a copy with another one would fail at another line.
    assert altered("two_sites") == {b'"4"'}
    # Nothing is told that no run has come by; the other assertion is asked in the box.
    assert found["branch"].withheld == ()
    assert altered("branch") == {b'"6"'}
    # A test that knows its own name is not asked under another one.
    assert found["own_name"].alterations == ()
    # What is wrong without a solution guards the rest, unless the tests show it elsewhere.
    assert len(found["not_plain"].withheld) == 2
    assert (found["not_plain"].chance, pool.held) == (1, ())
    assert (found["two_sites"].chance_to_tell, found["branch"].chance_to_tell) == (1, 1)
    # 100 is above any number like 20: a copy passes, so it is none.
    assert found["wide"].alterations == ()
    assert not found["wide"].decides
    assert pool.seconds > 0


async def test_tables_are_proven_row_by_row(sandboxes: Sandboxes, tmp_path: Path) -> None:
    pool = await proven(sandboxes, tmp_path, TABLES, ["module_table", "beside_another", "its_own_answer"])
    found = {asked.function.path[-1].removeprefix("test_"): asked for asked in pool.alterable}
    (site,) = found["module_table"].withheld
    assert site.values == (0, 42, 34)
    assert found["module_table"].chance == 0.25, "each is one less than the wrong answer"
    assert [site.values for site in found["beside_another"].withheld] == [("n is 3", "n is 5")]
    assert found["beside_another"].alterations == (), "its versions would need the table that is gone"
    assert "its_own_answer" not in found, "nothing in it is bound to one thing"


IMPORTING = """
import unittest

from a import double
from tests.test_a import DOUBLES


class T(unittest.TestCase):
    def test_it(self):
        self.assertEqual([double(given) for given, _ in DOUBLES], [wanted for _, wanted in DOUBLES])
"""


async def test_what_another_file_may_import_stays(sandboxes: Sandboxes, tmp_path: Path) -> None:
    """Emptied, it would make honest grading fail there."""
    files = {"tests/test_a.py": TABLES.encode(), "tests/test_b.py": IMPORTING.encode()}
    ids = ["tests.test_a.T.test_module_table", "tests.test_a.T.test_beside_another", "tests.test_b.T.test_it"]
    reference = projects.diff(WRONG, RIGHT, "a.py")
    made = suite_files(files, ids, ["tests.test_a.T.test_wide"])
    task = projects.task(tmp_path / "task", made, {"a.py": WRONG}, reference, {"runner": "unittest"})
    suite = read_suite(task)
    assert not any(
        site.blanks for asked in alterable_tests(suite, "tests/test_a.py", files) for site in asked.function.sites
    )
    alone = {path: data.replace(b"test_a", b"test_abc") for path, data in files.items()}
    other = replace(suite, files=alone)
    assert any(
        site.blanks for asked in alterable_tests(other, "tests/test_a.py", alone) for site in asked.function.sites
    )
    verdict = await Grader(sandboxes).grade(task, reference)
    assert verdict.passed, verdict.reason


async def test_the_reference_is_run_once_however_many_ask(
    grader: Grader, examined: list[BoxSpec], tmp_path: Path
) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    diffs = ["", reference_diff(task), projects.diff(projects.WRONG, projects.RIGHT + "\n", "shop/prices.py")]
    await asyncio.gather(*(grader.grade(task, diff) for diff in diffs))
    assert len(examined) == 2 + 3, "with the reference, without anything, and the three"


@pytest.mark.parametrize("reference", ["", "nonsense", None])
async def test_without_a_reference_nothing_is_proven_nor_sealed(
    sandboxes: Sandboxes, tmp_path: Path, reference: str | None
) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    solution = reference_diff(task)
    path = task.directory / "solution/patch.diff"
    path.unlink() if reference is None else path.write_text(reference)
    verdict = await Grader(sandboxes).grade(task, solution)
    assert verdict.passed
    assert verdict.evidence.withheld == 0
    assert not verdict.evidence.sealed


REMARKS = """
import pathlib
import unittest

from a import help_of, text

HERE = pathlib.Path(__file__)


class T(unittest.TestCase):
    def test_help(self):
        '''It is n is 43.'''

        def command():
            '''Adds numbers.'''

        self.assertEqual((text(43), help_of(command)), ("n is 43", "Adds numbers."))  # n is 43

    def test_data(self):
        self.assertEqual((text(43), HERE.with_name("data.py").read_text()), ("n is 43", "x = 1  # data\\n"))

    def test_own_lines(self):
        self.assertEqual((text(43), "#" + " n is" in HERE.read_text()), ("n is 43", True))
"""


@pytest.mark.parametrize("names", [["help", "data"], ["help", "data", "own_lines"]], ids=["unused", "used"])
async def test_remarks_that_the_code_or_a_test_reads_stay(
    sandboxes: Sandboxes, tmp_path: Path, names: list[str]
) -> None:
    helper = "\n\ndef help_of(function):\n    return function.__doc__\n"
    reference = projects.diff(WRONG + helper, RIGHT + helper, "a.py")
    tests = {"tests/test_a.py": REMARKS.encode(), "tests/data.py": b"x = 1  # data\n"}
    files = suite_files(tests, [f"tests.test_a.T.test_{name}" for name in names])
    task = projects.task(tmp_path / "task", files, {"a.py": WRONG + helper}, reference, {"runner": "unittest"})
    grader = TestsVerifier(task)
    prepared = await Environments(sandboxes).prepare(task)
    solved = GradingContext(task, sandboxes, prepared, change_of(reference, prepared.files, grader.protects))
    verdict = await grader.examine(solved)
    assert verdict.judgement is Judgement.PASS, verdict.reason
    assert verdict.evidence.withheld > 0
    kept = grader.pool.sources["tests/test_a.py"]
    assert (b"It is n is 43." in kept, b"# n is 43" in kept) == (("own_lines" in names),) * 2


async def test_a_host_that_gives_no_time_to_the_proof_is_our_error(tmp_path: Path, grader: Grader) -> None:
    task = projects.project(tmp_path / "task", "unittest")

    async def starved(*args: object) -> RunOutput:
        return RunOutput("n", 137, limit="time", starved=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "run_exam", starved)
        assert (await grader.grade(task, "")).judgement is Judgement.ERROR
    assert (await grader.grade(task, reference_diff(task))).passed, "and it is proven later"


async def test_what_tells_most_is_searched_first(tmp_path: Path, grader: Grader) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    (task.directory / "environment/repo/a.txt").write_text("a" * 9_000)
    (task.directory / "environment/repo/b.txt").write_text("b")
    order: list[str] = []

    async def looked(*args: Any) -> Pool:
        order.extend(args[-1])
        return Pool()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "prove", looked)
        await grader.grade(task, "")
    assert order[:2] == ["", "shop/prices.py"], "the instruction, and what the reference changes"
    assert order.index("b.txt") < order.index("a.txt")


def test_a_test_that_had_to_wait_for_a_busy_machine_is_not_taken_for_a_dear_one() -> None:
    """Else it would be asked in fewer versions, and its verdict not be sealed."""
    file, source = "tests/test_a.py", b"from a import numbers\n\n\ndef test_it():\n    assert 4711 in numbers(3)\n"
    suite = Suite(SuiteConfig(runner="pytest"), {file: source}, (f"{file}::test_it",), ())

    async def run(exam: Exam, solved: bool) -> RunOutput:
        rows: list[dict[str, object]] = [{"ready": True}]
        for node in ast.parse(exam.files[file]).body:
            if isinstance(node, ast.FunctionDef):
                right = "4711" in ast.unparse(node)
                outcome, seconds = ("passed" if right and solved else "failed"), (0.5 if right else 0.001)
                rows.append({"test": f"{file}::{node.name}", "outcome": outcome, "seconds": seconds, "line": 1})
        return RunOutput("n", 1, "".join(f"n {json.dumps(row)}\n" for row in rows).encode())

    pool = asyncio.run(prove(suite, {file: source}, run, random.Random(1), {}))
    assert [asked.seconds for asked in pool.alterable] == [0.001]
    assert chance_left(pool) <= SEALED
