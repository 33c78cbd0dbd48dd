"""The test that is added to a task's hidden ones: its cases mean something, and its answers cannot be guessed."""

from __future__ import annotations

import ast
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.categories.computed_cases import TEST, Case, _hard_to_guess, _varied, with_computed_cases
from etude.tasks.categories.tested_expressions import assigned, filled
from etude.tasks.categories.variants import run_variants, try_variants

SOUND = b"""def fee(hours, limit=8):
    return 5 * min(hours, limit) + 9 * max(hours - limit, 0)


def late(hours):
    return hours > 8
"""
BROKEN = SOUND.replace(b"max(hours - limit, 0)", b"max(hours - limit, 1)")
SHIFTED = SOUND.replace(b"return 5 *", b"return 1 + 5 *")
TESTS = b"""import unittest

import fees

LONG = 21


class FeeTest(unittest.TestCase):
    def test_fee(self):
        hours = [8, 11, LONG]
        self.assertEqual([fees.fee(one) for one in hours], [40, 67, 157])
        self.assertEqual(fees.fee(17, 9), 117)
        self.assertEqual([fees.fee(3), fees.fee(6, 12)], [15, 30])

    def test_late(self):
        self.assertEqual([fees.late(8), fees.late(9)], [False, True])
"""
FILES = {"tests/test_fees.py": TESTS, "tests/__init__.py": b""}


def added(broken: bytes | None, names: list[str]) -> bytes | None:
    unsolved = None if broken is None else {"fees.py": broken}
    return with_computed_cases(
        "tests/test_fees.py", FILES, names, {"fees.py": SOUND}, unsolved, [{"fees.py": SOUND + b"\n"}], random.Random(4)
    )


def test_the_added_test_tells_the_sound_from_the_broken() -> None:
    made = added(BROKEN, ["test_fee"])
    assert made is not None
    assert made.startswith(TESTS)
    assert b"LONG" not in made.removeprefix(TESTS), "what it asks is written out"
    tests = {**FILES, "tests/test_fees.py": made}
    outcomes = try_variants({"fees.py": SOUND, **tests}, [{}, {"fees.py": BROKEN}])
    assert [outcome.failed for outcome in outcomes if outcome] == [
        (),
        (f"tests.test_fees.{TEST}", "tests.test_fees.FeeTest.test_fee"),
    ]
    assert added(BROKEN, ["test_fee"]) == made, "the same for one seed"


def test_answers_that_are_all_off_by_one_are_not_enough() -> None:
    assert added(SHIFTED, ["test_fee"]) is None
    assert added(BROKEN, ["test_late"]) is None, "nothing that it asks is answered wrongly"
    assert added(BROKEN, []) is None


def test_one_case_without_an_answer_does_not_hide_that_the_others_are_near() -> None:
    near = [Case(f"f({number})", str(4 * number + 1), str(4 * number)) for number in range(311, 324)]
    assert _hard_to_guess([*near, Case("f(99)", "0", None)], [], random.Random(4)) is None
    odd = [Case(one.asked, str(int(one.right) ** 2 % 1217), one.wrong) for one in near]
    chosen = _hard_to_guess([*odd, Case("f(99)", "0", None)], [], random.Random(4))
    assert chosen is not None
    assert None not in [one.wrong for one in chosen]


def test_which_answers_are_wrong_is_no_secret_by_itself() -> None:
    cases = [Case(f"f({number})", str(4 * number + number % 2), str(4 * number)) for number in range(311, 324)]
    assert _hard_to_guess(cases, [], random.Random(4)) is None, "add 1 to those of odd numbers"


def test_answers_of_code_that_must_not_stay_are_unknown() -> None:
    assert added(None, ["test_fee"]) is not None


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers())
def test_numbers_get_smaller_and_keep_their_order(numbers: list[int], seed: int) -> None:
    asked = ast.parse(f"f({numbers}, 'at 0{numbers[0]:02}')", mode="eval").body
    varied = ast.parse(_varied(asked, random.Random(seed), texts=False), mode="eval").body
    assert isinstance(varied, ast.Call)
    found, text = map(ast.literal_eval, varied.args)
    for one, small in zip(numbers, found, strict=True):
        assert min(one, 1) <= small <= one
        assert all((one < other) == (small < less) for other, less in zip(numbers, found, strict=True) if small > 1)
    assert len(text) == len("at 000")


@pytest.mark.parametrize(
    "broken", [b"import nothing\n", b"def fee(*_):\n    while True:\n        pass\n", b"fee = 1 /"]
)
def test_broken_code_of_any_kind_gives_no_answers(broken: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.tasks.categories.computed_cases._CPU_SECONDS", 0.01)
    assert added(broken, ["test_fee"]) is not None


def test_code_that_catches_everything_ends_too() -> None:
    loop = "try:\n            while True:\n                pass\n        except:\n            pass\n"
    heads = ("for _ in range(5)", "while True")
    variants = [{"a.py": f"def f():\n    {head}:\n        {loop}"} for head in heads]
    job = {"files": {}, "variants": variants, "module": "a", "expressions": ["f()", "1 + 1"], "seconds": 0.05}
    assert json.loads(run_variants(json.dumps(job).encode(), 20)) == [["None", "2"], None]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("f(text)", "f(text.strip())"),
        ("f(one, LIMIT)", "f(one + 1, 8)"),
        ("[f(LIMIT) for LIMIT in rows]", "[f(LIMIT) for LIMIT in [8]]"),
        ("[f(one) for one in rows]", "[f(one) for one in [8]]"),
        ("key(lambda LIMIT: LIMIT)", "key(lambda LIMIT: LIMIT)"),
    ],
)
def test_free_names_are_filled_in(expression: str, wanted: str) -> None:
    lines = "LIMIT = 8\ntext = text.strip()\none = other + 1\nother = one\nrows = [LIMIT]\n"
    made = filled(ast.parse(expression, mode="eval").body, assigned(ast.parse(lines).body))
    assert ast.unparse(made) == wanted
