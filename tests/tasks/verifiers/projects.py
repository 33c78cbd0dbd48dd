"""Small projects with a bug and a hidden suite, one for each runner."""

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
NODE_WRONG = """export function total(prices, discount = 0) {
  return prices.reduce((sum, price) => sum + price, 0) + discount;
}

export function label(price) {
  return `${price} EUR`;
}
"""
NODE_RIGHT = NODE_WRONG.replace("+ discount", "- discount")
NODE = """import assert from "node:assert";
import { describe, it, test } from "node:test";
import { label, total } from "../shop/prices.mjs";

test("total with discount", () => {
  assert.strictEqual(total([5, 7], 2), 10);
});

test("total of nothing", () => {
  assert.equal(total([], 3), -3);
});

describe("labels", () => {
  it("label of price", () => {
    assert.strictEqual(label(3), "3 EUR");
  });
  it.skip("label of nothing", () => {
    assert.strictEqual(label(null), "");
  });
});
"""


def diff(before: str, after: str, path: str) -> str:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return "".join(lines)


def project(folder: Path, runner: str, /, **verifier: object) -> Task:
    """A task on disk; its reference is `solution/patch.diff`."""
    if runner == "node":
        path, wrong, right = "shop/prices.mjs", NODE_WRONG, NODE_RIGHT
        hidden, name = {"test/prices.test.mjs": NODE}, "test/prices.test.mjs > "
        ids = ["total with discount", "total of nothing"], ["labels > label of price", "labels > label of nothing"]
    else:
        path, wrong, right = "shop/prices.py", WRONG, RIGHT
        text = PYTEST if runner == "pytest" else UNITTEST
        hidden = {"tests/test_prices.py": text, "tests/__init__.py": ""}
        if runner == "pytest":
            name = "tests/test_prices.py::"
            ids = (
                ["test_total_with_discount", "test_total_of_nothing"],
                [
                    "test_label_of_price",
                    "test_cheapest_of_some[given0-2]",
                    "test_cheapest_of_some[given1-1]",
                    "TestEdges::test_cheapest_of_nothing",
                    "TestEdges::test_label_of_nothing",
                ],
            )
            verifier = {"pytest": "brought", **verifier}
        else:
            name = "tests.test_prices."
            ids = (
                ["TotalTest.test_total_with_discount", "TotalTest.test_total_of_nothing"],
                [f"LabelTest.test_{rest}" for rest in ("label_of_price", "cheapest_of_nothing", "label_of_nothing")],
            )
    fails, passes = ([name + test for test in group] for group in ids)
    files = suite_files({p: t.encode() for p, t in hidden.items()}, fails, passes, [passes[-1]])
    repository = {path: wrong, "shop/__init__.py": ""} if runner != "node" else {path: wrong}
    return task(folder, files, repository, diff(wrong, right, path), {"runner": runner, **verifier})


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
