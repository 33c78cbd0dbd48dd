"""What tests see of the box they run in, and how each runner's outcomes are told: in real boxes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.needs import needs

from etude.sandbox.contract import Sandboxes
from etude.tasks import Environments, GradingContext, Judgement
from etude.tasks.change import Change
from etude.tasks.conditions import USUAL, Conditions
from etude.tasks.verifiers.tests import (
    Exam,
    RunOutput,
    TestsVerifier,
    judge_run,
    plain_exam,
    run_exam,
    suite_files,
)
from etude.tasks.verifiers.tests.run_output import Rows, read_rows

from . import projects

Run = Callable[..., tuple[RunOutput, Rows, Exam]]


@pytest.fixture
def run(loop: asyncio.Runner, sandboxes: Sandboxes, tmp_path: Path) -> Run:
    """Of a suite of these files, over a workspace."""

    def ran(
        runner: str,
        tests: dict[str, str],
        ids: list[str],
        *,
        repository: dict[str, str] | None = None,
        conditions: Conditions = USUAL,
        **verifier: object,
    ) -> tuple[RunOutput, Rows, Exam]:
        files = suite_files({path: text.encode() for path, text in tests.items()}, ids)
        task = projects.task(tmp_path / "task", files, repository or {"a.py": ""}, "", {"runner": runner, **verifier})
        ours = TestsVerifier(task)

        async def running() -> RunOutput:
            prepared = await Environments(sandboxes).prepare(task)
            context = GradingContext(task, sandboxes, prepared, Change(), conditions)
            return await run_exam(await ours.with_brought_pytest(context), ours.suite.config, exam)

        exam = plain_exam(ours.suite)
        output = loop.run(running())
        return output, read_rows(output.rows, output.nonce), exam

    return ran


OUTCOMES_UNITTEST = """
import unittest

class T(unittest.TestCase):
    def test_passes(self): pass
    def test_fails(self): self.assertEqual(1, 2)
    def test_breaks(self): 1 / 0
    def test_skips(self): self.skipTest("x")
    @unittest.expectedFailure
    def test_xfails(self): self.fail()
    @unittest.expectedFailure
    def test_xpasses(self): pass
    def test_subtests(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)
    def test_fine_subtests(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 5)

class Cleanup(unittest.TestCase):
    def tearDown(self): raise OSError
    def test_torn(self): pass
"""
OUTCOMES_PYTEST = """
import unittest
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
@pytest.fixture
def broken(): raise OSError
def test_breaks(broken): pass
def test_skips(): pytest.skip("x")
@pytest.mark.xfail
def test_xfails(): assert 0
@pytest.mark.xfail
def test_xpasses(): pass
@pytest.mark.xfail(strict=True)
def test_xpasses_strictly(): pass
@pytest.fixture
def torn():
    yield
    raise OSError
def test_torn(torn): pass
@pytest.mark.parametrize("a", ["x y", "é", "a::b"])
def test_cases(a): assert a != "é"
def test_subtests(subtests):
    for n in range(3):
        with subtests.test(n=n):
            assert n != 1
def test_fine_subtests(subtests):
    for n in range(3):
        with subtests.test(n=n):
            assert n != 5
class T(unittest.TestCase):
    def test_method(self): self.assertEqual(1, 1)
"""
OUTCOMES_NODE = """
import assert from "node:assert";
import { describe, it, test } from "node:test";
test("passes", () => {});
test("fails", () => assert.equal(1, 2));
test.skip("skips", () => {});
test.todo("xfails", () => { throw new Error(); });
describe("suite", () => {
  describe("deep", () => { it("passes", () => {}); it("fails", async () => { throw 1; }); });
});
test("twice", () => {});
test("twice", () => assert.fail());
test("outer", async (t) => { await t.test("inner", () => {}); });
"""


OUTCOMES = {
    "unittest": (
        "tests/test_a.py",
        OUTCOMES_UNITTEST,
        "tests.test_a.",
        {
            "passed": ["T.test_passes", "T.test_fine_subtests"],
            "failed": ["T.test_fails", "T.test_subtests"],
            "error": ["T.test_breaks", "Cleanup.test_torn"],
            "skipped": ["T.test_skips"],
            "xfailed": ["T.test_xfails"],
            "xpassed": ["T.test_xpasses"],
        },
    ),
    "pytest": (
        "tests/test_a.py",
        OUTCOMES_PYTEST,
        "tests/test_a.py::test_",
        {
            "passed": ["passes", "cases[x y]", "cases[a::b]", "fine_subtests"],
            "failed": ["fails", "xpasses_strictly", "cases[\\xe9]", "subtests"],
            "error": ["breaks", "torn"],
            "skipped": ["skips"],
            "xfailed": ["xfails"],
            "xpassed": ["xpasses"],
        },
    ),
    "node": (
        "test/a.test.mjs",
        OUTCOMES_NODE,
        "test/a.test.mjs > ",
        {
            "passed": ["passes", "suite > deep > passes", "twice", "outer > inner", "outer"],
            "failed": ["fails", "suite > deep > fails", "twice #2"],
            "skipped": ["skips"],
            "xfailed": ["xfails"],
        },
    ),
}


@pytest.mark.parametrize(
    "runner",
    ["unittest", pytest.param("pytest", marks=pytest.mark.slow), pytest.param("node", marks=needs("node"))],
)
def test_outcomes(run: Run, runner: str) -> None:
    path, source, prefix, named = OUTCOMES[runner]
    wanted = {f"{prefix}{name}": outcome for outcome, names in named.items() for name in names}
    if runner == "pytest":
        wanted |= {"tests/test_a.py::T::test_method": "passed"}
    more = {"pytest": "brought", "arguments": ["-x"]} if runner == "pytest" else {}
    output, rows, exam = run(runner, {path: source}, list(wanted), **more)
    assert rows.outcomes == wanted
    assert (rows.end, output.code) == (1, 1)
    assert judge_run(exam, output).judgement is Judgement.FAIL, "and its three accounts agree"
    assert runner != "unittest" or rows.places["tests.test_a.T.test_fails"] == 0


SURROUNDINGS = """
import os, pathlib, sys, tempfile, unittest

class T(unittest.TestCase):
    def test_home_and_temporary_folder_are_new_and_empty(self):
        self.assertEqual(os.listdir(os.path.expanduser("~")), [])
        with tempfile.NamedTemporaryFile() as file:
            self.assertTrue(file.name.startswith(os.environ["TMPDIR"]))

    def test_standard_input_is_empty_and_output_is_the_log(self):
        self.assertEqual(sys.stdin.read(), "")
        os.write(1, b"to the log\\n")

    def test_the_environment_is_ours(self):
        self.assertEqual(os.environ["EXTRA"], "given")
        self.assertNotIn("/work", os.environ["PATH"])
        self.assertEqual(os.getcwd(), "/work")
        self.assertEqual(sys.path[0], "/work/src")

    def test_programs_do_not_inherit_the_rows(self):
        import subprocess
        listed = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True).stdout.split()
        self.assertLessEqual(set(listed), {"0", "1", "2", "3"})

    def test_what_would_steer_python_is_not_read(self):
        self.assertNotIn("sitecustomize_was_here", os.environ)
        import json
        self.assertNotIn("/work", json.__file__)

    def test_the_workspace_cannot_be_written(self):
        with self.assertRaises(PermissionError):
            pathlib.Path("tests/test_a.py").write_text("")
        with self.assertRaises(PermissionError):
            pathlib.Path("new").write_text("")
"""


def test_surroundings(run: Run, seals: bool) -> None:
    names = [line.split("(")[0].split()[1] for line in SURROUNDINGS.splitlines() if line.startswith("    def ")]
    mark = "import os\nos.environ['sitecustomize_was_here'] = '1'\n"
    repository = {"src/json.py": "raise ImportError\n", "sitecustomize.py": mark, "src/sitecustomize.py": mark}
    ids = [f"tests.test_a.T.{name}" for name in names]
    output, rows, _ = run(
        "unittest",
        {"tests/test_a.py": SURROUNDINGS},
        ids,
        repository=repository,
        path=["src", "."],
        env={"EXTRA": "given"},
    )
    failed = {name.rpartition(".")[2] for name, outcome in rows.outcomes.items() if outcome != "passed"}
    if not seals:
        failed -= {"test_the_workspace_cannot_be_written"}
    assert failed == set(), output.log.decode()
    assert b"to the log" in output.log
    assert rows.memory_bytes > 1_000_000


def test_an_image_that_cannot_run_such_tests_is_our_error_with_a_reason(run: Run) -> None:
    tests, ids = {"tests/test_a.py": "def test_a(): pass"}, ["tests/test_a.py::test_a"]
    for fields, said in (
        ({"python": "python9"}, "exit code 127"),
        ({"env": {"EXTRA": "1"}, "python": "/opt/python/bin/python3", "pytest": "image"}, "No module named"),
    ):
        output, _, exam = run("pytest", tests, ids, **fields)
        verdict = judge_run(exam, output)
        assert verdict.judgement is Judgement.ERROR
        assert said in verdict.reason


def test_a_suite_that_cannot_be_imported_fails_whole(run: Run) -> None:
    tests = {
        "tests/test_a.py": "import absent\n",
        "tests/test_b.py": "import unittest\nclass B(unittest.TestCase):\n    def test_b(self): pass\n",
    }
    output, rows, exam = run("unittest", tests, ["tests.test_a.A.test_a", "tests.test_b.B.test_b"])
    verdict = judge_run(exam, output)
    assert verdict.judgement is Judgement.FAIL
    assert verdict.evidence.failed_tests == ("tests.test_a.A.test_a",)
    assert rows.outcomes["tests.test_b.B.test_b"] == "passed"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("while True: pass", "CPU time"),
        ("import os; os.kill(os.getpid(), 11)", "exit code 139"),
        ("import os; os._exit(0)", "exit code 0"),
    ],
)
def test_how_a_run_ended_is_told(run: Run, code: str, said: str) -> None:
    tests = {
        "tests/test_a.py": f"import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        {code}\n"
    }
    output, _, exam = run("unittest", tests, ["tests.test_a.A.test_a"], seconds=1)
    verdict = judge_run(exam, dataclasses.replace(output, starved=False))
    assert verdict.judgement is Judgement.FAIL
    assert said in verdict.reason


MANY = "".join(f"    def test_{n}(self): pass\n" for n in range(9))


@pytest.mark.parametrize("runner", ["unittest", pytest.param("pytest", marks=pytest.mark.slow)])
def test_order_and_variables_are_those_of_the_conditions(run: Run, runner: str) -> None:
    source = f"import os\nimport unittest\nprint(os.environ.get('TZ'))\nclass A(unittest.TestCase):\n{MANY}"
    mark = {"unittest": "tests.test_a.A.test_", "pytest": "tests/test_a.py::A::test_"}[runner]
    ids = [f"{mark}{n}" for n in range(9)]
    orders = []
    for conditions in (
        USUAL,
        Conditions(order=1),
        Conditions(order=1),
        Conditions(order=2, env=(("TZ", "Asia/Baku"),)),
    ):
        output, rows, exam = run(runner, {"tests/test_a.py": source}, ids, conditions=conditions, pytest="brought")
        assert judge_run(exam, output).passed
        orders.append([int(test[-1]) for test in rows.outcomes])
    assert b"Asia/Baku" in output.log or runner == "pytest"
    assert orders[0] == list(range(9))
    assert orders[1] == orders[2] != orders[0]
    assert orders[3] not in orders[:2]
    assert sorted(orders[3]) == orders[0]
