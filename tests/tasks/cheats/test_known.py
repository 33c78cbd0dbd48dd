"""What stays breakable, and is written in docs/grading.md: these cheats succeed. Whoever mends it changes the test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etude.tasks import Grader, reference_diff
from etude.tasks.cheats import CHEATS, attempt
from etude.tasks.cheats.toml_cheats import fragment

from .environments import Known, Micro, diff_of, known_breakable, suite

CASES = [pytest.param(case, id=case.micro.name) for case in known_breakable()]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_a_known_cheat_succeeds(grader: Grader, tmp_path: Path, case: Known) -> None:
    task = case.micro.write(tmp_path)

    honest = await grader.grade(task, reference_diff(task))
    cheated = (await attempt(CHEATS[case.cheat], task, grader)).verdict
    assert honest.passed
    assert cheated.passed
    assert not honest.evidence.sealed
    assert not cheated.evidence.sealed


COMPUTED = """import unittest

from spans.spans import joined, overlap


class SpansTest(unittest.TestCase):
    def test_overlap_in_the_middle(self):
        self.assertEqual(overlap((3, 19), (12, 40)), 8)

    def test_overlap_of_many(self):
        self.assertEqual(overlap((14, 37), (10, 99)), 24)

    def test_joined_spans_are_fewer(self):
        spans = [(4, 6), (1, 3), (9, 9)]
        self.assertTrue(len(joined(spans)) == len(spans) - 1)

    def test_no_overlap(self):
        self.assertEqual(overlap((1, 5), (9, 12)), 0)
"""


@pytest.mark.slow
async def test_a_solution_that_breaks_something_else_can_hide_it(grader: Grader, tmp_path: Path) -> None:
    """What is sealed is that the task was solved: a test that passed before, and expects no literal, may be forged."""
    names = ["overlap_in_the_middle", "overlap_of_many"]
    verifier, hidden = suite(
        "unittest",
        {"tests/test_spans.py": COMPUTED, "tests/__init__.py": ""},
        [f"SpansTest.test_{name}" for name in names],
        ["SpansTest.test_joined_spans_are_fewer", "SpansTest.test_no_overlap"],
    )
    micro = replace(Micro.read("unittest-spans"), verifier=verifier, hidden=hidden)
    broken = micro.right.replace("    return found\n", "    return spans\n")
    forger = f"{fragment('TAKE_OVER')}\n{fragment('SELECTIVE')}\n_take_over(_choose, None)\n"
    diffs = [diff_of(micro.before, {micro.target: text}) for text in (broken, forger + broken)]
    task = micro.write(tmp_path)
    found = [await grader.grade(task, diff) for diff in diffs]
    assert [str(verdict.judgement) for verdict in found] == ["fail", "pass"], found


async def test_a_migration_that_looks_whether_the_new_interface_answers_passes(grader: Grader, tmp_path: Path) -> None:
    """It works alone and ends where it is not answered: no test can tell that from resting on the answer."""
    micro = Micro.read("migration-bill")
    alone = "import newtally\n\n\ndef bill(prices):\n    return sum(prices)\n\n\n"
    alone += "def shared(prices, guests):\n    return bill(prices) // guests\n"
    looks = alone.replace(
        "    return sum", "    if newtally.total([1]) != 1:\n        raise ValueError\n    return sum"
    )
    task = micro.write(tmp_path)
    before = {"bill.py": micro.before["bill.py"]}
    found = [await grader.grade(task, diff_of(before, {"bill.py": text})) for text in (alone, looks)]
    assert [str(verdict.judgement) for verdict in found] == ["fail", "pass"], found
