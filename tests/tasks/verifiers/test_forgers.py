"""Forgers in real boxes, each runner: none passes, and beside them honest solutions do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etude.tasks import Grader, Judgement, Task, Verdict, reference_diff

from ..conftest import Boxes
from . import projects
from .forgers import NODE, PYTHON

RUNNERS = ["unittest", "pytest", "node"]
OTHER = projects.RIGHT.replace("sum(prices) - discount", "-discount + sum(prices)")
Graded = dict[str, Verdict]


def grade_all(boxes: Boxes, task: Task, diffs: dict[str, str]) -> Graded:
    """One after the other, by one grader."""

    async def run() -> Graded:
        async with boxes() as sandboxes:
            grader = Grader(sandboxes)
            return {name: await grader.grade(task, diff) for name, diff in diffs.items()}

    return asyncio.run(run())


def replaced(runner: str, code: str) -> str:
    if runner == "node":
        return projects.diff(projects.NODE_WRONG, code, "shop/prices.mjs")
    return projects.diff(projects.WRONG, code if code.endswith("\n") else code + "\n", "shop/prices.py")


@pytest.fixture(scope="module", params=[pytest.param(runner, marks=pytest.mark.slow) for runner in RUNNERS])
def graded(request: pytest.FixtureRequest, boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Graded:
    runner = request.param
    task = projects.project(tmp_path_factory.mktemp("forgers") / runner, runner, seconds=3, memory_mb=512)
    forgers = NODE if runner == "node" else PYTHON
    diffs = {name: replaced(runner, code) for name, code in forgers.items()}
    other = projects.NODE_RIGHT.replace("let", "var") if runner == "node" else OTHER
    honest = {"reference": reference_diff(task), "other": replaced(runner, other + "\n"), "nothing": ""}
    return grade_all(boxes, task, {**honest, **diffs})


def test_honest_solutions_pass_and_nothing_fails(graded: Graded) -> None:
    assert graded["reference"].passed, graded["reference"]
    assert graded["other"].passed, graded["other"]
    assert graded["nothing"].judgement is Judgement.FAIL
    assert "2 of" in graded["nothing"].reason
    assert graded["reference"].evidence.controls > 0


def test_a_forger_that_knows_our_source_is_suspect(boxes: Boxes, tmp_path: Path) -> None:
    """The quick one of the cases below."""
    task = projects.project(tmp_path / "quick", "unittest")
    names = ["passes everything, knowing our source", "reads the answer off its caller", "skips all"]
    diffs = {name: replaced("unittest", PYTHON[name]) for name in names}
    found = grade_all(boxes, task, {"reference": reference_diff(task), **diffs})
    assert [str(verdict.judgement) for verdict in found.values()] == ["pass", "suspect", "suspect", "fail"]
    assert found["reference"].evidence.withheld == 2


def test_no_forger_passes_and_none_is_excused(graded: Graded) -> None:
    forgers = {name: verdict for name, verdict in graded.items() if name not in ("reference", "other", "nothing")}
    # What computes all the time may be excused on a host that has none: these share one with other tests.
    greedy = ("never ends", "floods the log", "takes all memory")
    wrong = {
        name: verdict.reason
        for name, verdict in forgers.items()
        if verdict.judgement not in (Judgement.FAIL, Judgement.SUSPECT)
        and not (name in greedy and verdict.judgement is Judgement.ERROR)
    }
    assert wrong == {}


def test_who_passes_everything_is_suspect(graded: Graded) -> None:
    for name in (
        "passes everything, knowing our source",
        "passes everything and ends as if not",
        "writes rows everywhere",
        "says rows with the nonce",
    ):
        if name in graded:
            assert graded[name].judgement is Judgement.SUSPECT, (name, graded[name].reason)


def test_limits_are_named(graded: Graded) -> None:
    """Of node's processes, one for each file, the kernel ends the one that computes."""
    reason = graded["never ends"].reason
    assert "CPU time" in reason or "did not run" in reason


@pytest.mark.parametrize("runner", ["unittest", pytest.param("pytest", marks=pytest.mark.slow)])
def test_an_answer_that_fits_whatever_is_asked_is_suspect_where_the_question_is_in_the_box(
    boxes: Boxes, tmp_path: Path, runner: str
) -> None:
    """What is expected is part of something: it cannot be held back, so several versions are asked."""
    if runner == "pytest":
        hidden = "from shop.prices import label\n\n\ndef test_label():\n    assert 'EUR 17' in label(17)\n"
        test = "tests/test_label.py::test_label"
    else:
        hidden = (
            "import unittest\nfrom shop.prices import label\n\n\nclass T(unittest.TestCase):\n"
            "    def test_label(self):\n        self.assertIn('EUR 17', label(17))\n"
        )
        test = "tests.test_label.T.test_label"
    wrong, right = (
        "def label(price):\n    return f'EUR {price + 1}'\n",
        "def label(price):\n    return f'EUR {price}'\n",
    )
    everything = (
        "class Any(str):\n    def __contains__(self, other):\n        return True\n\n\n"
        "def label(price):\n    return Any()\n"
    )
    reference = projects.diff(wrong, right, "shop/prices.py")
    files = projects.suite_files({"tests/test_label.py": hidden.encode()}, [test])
    verifier = {"runner": runner, "pytest": "brought"}
    task = projects.task(tmp_path / "labels", files, {"shop/prices.py": wrong}, reference, verifier)
    diffs = {"right": reference, "nothing": "", "everything": projects.diff(wrong, everything, "shop/prices.py")}
    found = grade_all(boxes, task, diffs)
    assert {name: str(verdict.judgement) for name, verdict in found.items()} == {
        "right": "pass",
        "nothing": "fail",
        "everything": "suspect",
    }
    assert found["right"].evidence.controls >= 8


def test_a_file_in_the_place_of_the_hidden_tests_folder_is_no_error(boxes: Boxes, tmp_path: Path) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    in_the_way = "--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n+x\n"
    found = grade_all(boxes, task, {"nothing": in_the_way, "right": reference_diff(task) + in_the_way})
    assert [str(verdict.judgement) for verdict in found.values()] == ["fail", "pass"]
    assert found["right"].evidence.touched_protected == ("tests",)
