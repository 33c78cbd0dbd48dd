"""Where the question is in the box, and where a change lies in the way of the tests; all other forgers are cheats."""

from __future__ import annotations

from pathlib import Path

from etude.tasks import reference_diff

from ..conftest import Grade, by_name
from . import projects


def test_an_answer_that_fits_whatever_is_asked_is_suspect_where_the_question_is_in_the_box(
    grade: Grade, tmp_path: Path
) -> None:
    """What is expected is part of something: it cannot be held back, so several versions are asked."""
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
    verifier = {"runner": "unittest"}
    task = projects.task(tmp_path / "labels", files, {"shop/prices.py": wrong}, reference, verifier)
    diffs = {"right": reference, "nothing": "", "everything": projects.diff(wrong, everything, "shop/prices.py")}
    found = by_name(grade, task, diffs)
    assert {name: str(verdict.judgement) for name, verdict in found.items()} == {
        "right": "pass",
        "nothing": "fail",
        "everything": "suspect",
    }
    assert found["right"].evidence.controls >= 8


def test_a_file_in_the_place_of_the_hidden_tests_folder_is_no_error(grade: Grade, tmp_path: Path) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    in_the_way = "--- /dev/null\n+++ b/tests\n@@ -0,0 +1 @@\n+x\n"
    found = by_name(grade, task, {"nothing": in_the_way, "right": reference_diff(task) + in_the_way})
    assert [str(verdict.judgement) for verdict in found.values()] == ["fail", "pass"]
    assert found["right"].evidence.touched_protected == ("tests",)
