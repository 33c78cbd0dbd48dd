"""A small project with a bug and a hidden suite, for pytest or unittest."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from etude.tasks import Split, Task, read_task, write_task
from etude.tasks.task import TaskLimits
from etude.tasks.verifiers.tests import suite_files

WRONG = '''"""Prices."""


def total(prices, discount=0):
    return sum(prices) + discount


def label(price):
    return f"{price} EUR"


def cheapest(prices):
    if not prices:
        raise ValueError("no prices")
    return min(prices)
'''
RIGHT = WRONG.replace("+ discount", "- discount")

PYTEST = """import pytest

from shop import prices


def test_total_with_discount():
    assert prices.total([5, 7], 2) == 10


def test_total_of_nothing():
    assert prices.total([], 3) == -3
    assert len(prices.label(1)) > 3


def test_label_of_price():
    assert prices.label(3) == "3 EUR"


@pytest.mark.parametrize("given, wanted", [([4, 2], 2), ([1], 1)])
def test_cheapest_of_some(given, wanted):
    assert prices.cheapest(given) == wanted


class TestEdges:
    def test_cheapest_of_nothing(self):
        with pytest.raises(ValueError, match="no prices"):
            prices.cheapest([])

    @pytest.mark.skip(reason="later")
    def test_label_of_nothing(self):
        assert prices.label(None) == ""
"""
UNITTEST = """import unittest

from shop import prices


class TotalTest(unittest.TestCase):
    def test_total_with_discount(self):
        self.assertEqual(prices.total([5, 7], 2), 10)

    def test_total_of_nothing(self):
        self.assertEqual(prices.total([], 3), -3)
        self.assertGreater(len(prices.label(1)), 3)


class LabelTest(unittest.TestCase):
    def test_label_of_price(self):
        self.assertEqual("3 EUR", prices.label(3))

    def test_cheapest_of_nothing(self):
        with self.assertRaises(ValueError):
            prices.cheapest([])

    @unittest.skip("later")
    def test_label_of_nothing(self):
        self.assertEqual(prices.label(None), "")
"""


def diff(before: str, after: str, path: str) -> str:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return "".join(lines)


def project(folder: Path, runner: str, /, **verifier: object) -> Task:
    """A task on disk; its reference is `solution/patch.diff`."""
    if runner == "pytest":
        hidden, name = PYTEST, "tests/test_prices.py::"
        cheapest = ("test_cheapest_of_some[given0-2]", "test_cheapest_of_some[given1-1]")
        fails = ["test_total_with_discount", "test_total_of_nothing"]
        edges = [f"TestEdges::test_{rest}" for rest in ("cheapest_of_nothing", "label_of_nothing")]
        passes = ["test_label_of_price", *cheapest, *edges]
        verifier = {"pytest": "brought", **verifier}
    else:
        hidden, name = UNITTEST, "tests.test_prices."
        fails = ["TotalTest.test_total_with_discount", "TotalTest.test_total_of_nothing"]
        passes = [f"LabelTest.test_{rest}" for rest in ("label_of_price", "cheapest_of_nothing", "label_of_nothing")]
    fails, passes = ([name + test for test in group] for group in (fails, passes))
    tests = {"tests/test_prices.py": hidden.encode(), "tests/__init__.py": b""}
    files = suite_files(tests, fails, passes, [passes[-1]])
    repository = {"shop/prices.py": WRONG, "shop/__init__.py": ""}
    return task(folder, files, repository, diff(WRONG, RIGHT, "shop/prices.py"), {"runner": runner, **verifier})


def task(
    folder: Path,
    files: Mapping[str, bytes],
    repository: Mapping[str, str],
    reference: str,
    verifier: Mapping[str, object],
) -> Task:
    made = Task(
        id=folder.name,
        instruction="mend the total",
        category="debugging",
        split=Split.TRAIN,
        family=folder.name,
        kind="op",
        directory=folder,
        limits=TaskLimits(),
        verifier={"type": "tests", **verifier},
    )
    workspace = {f"environment/repo/{path}": text.encode() for path, text in repository.items()}
    write_task(made, {**files, **workspace, "solution/patch.diff": reference.encode()})
    return read_task(folder, {Split.TRAIN})
