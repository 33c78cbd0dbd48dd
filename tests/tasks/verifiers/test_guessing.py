"""How likely a withheld value is guessed: from what is known, and from what the unsolved code answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.verifiers.contract import SEALED
from etude.tasks.verifiers.tests.approximate import Near
from etude.tasks.verifiers.tests.chances import FLOOR, chance_of_all
from etude.tasks.verifiers.tests.guessing import answers_of, askers_of, ways_of
from etude.tasks.verifiers.tests.known_text import LARGEST, KnownText
from etude.tasks.verifiers.tests.visible_answers import computed_values

NOTHING = KnownText([])
TEXT = b"""
def test_it():
    assert show(43) == keep("1h30m", [7, 8], {"a": 12.5}, 1_024, .625, 0x2D, test_51_17)
"""
SUMS = b"""A = 40 + 3
assert f(0x2C, A * 2, [n * n for n in (5, 6)]) == g(range(61, 63), 'a' * 3)
"""
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=9,
)


def chance(value: object, *unsolved: object, known: KnownText = NOTHING) -> float:
    return chance_of_all([ways_of(value, unsolved, known)])


@pytest.mark.parametrize(
    "value",
    [
        43,
        -43,
        43.0,
        "43",
        "1h30m",
        "1H30",
        "30",
        30,
        1,
        [7, 8],
        (7, 8),
        {"a": 12.5},
        12.5,
        1024,
        [43],
        b"1h",
        {7, 8},
        0.625,
        45,
        51,
    ],
)
def test_what_a_text_shows_is_known_in_every_spelling(value: object) -> None:
    assert chance(value, known=KnownText([TEXT])) == 1
    assert chance(value, known=KnownText([b"\0" + TEXT])) < 1


@pytest.mark.parametrize("value", [44, "h31", [8, 7], {"a": 12}, "1.024", None, True, [], ""])
def test_what_it_does_not_show_is_not(value: object) -> None:
    assert chance(value, known=KnownText([TEXT])) < 1


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (True, 0.5, 0.5),
        (None, 0.5, 0.5),
        (0, 0.25, 0.25),
        ([], 0.25, 0.25),
        ("", 0.25, 0.25),
        (3, 1 / 20, 1 / 5),
        (17, 1 / 100, 1 / 20),
        (4711, FLOOR, FLOOR),
        (0.5, 1 / 20, 1 / 5),
        (Near(1000.0, 100.0), 1 / 20, 1 / 5),
        (Near(1000.0, 1e-6), FLOOR, FLOOR),
        ("a", 1 / 10, 1 / 5),
        ("sought", FLOOR, FLOOR),
        ([True, False, True], 1 / 100, 1 / 10),
        ([0] * 64, 1 / 10, 1 / 5),
        ([311, 204, 999], FLOOR, FLOOR),
    ],
)
def test_small_and_usual_values_are_likely(value: object, least: float, most: float) -> None:
    assert least <= chance(value) <= most


@pytest.mark.parametrize(
    ("value", "unsolved"),
    [
        (4712, 4711),
        (4709, 4711),
        (-4711, 4711),
        (9422, 4711),
        (47, 47.11),
        ("4711", 4711),
        (4711, "4711"),
        ([4711], 4711),
        ("Grand Hotel", "grand hotel"),
        ("grand-hotel", "grand hotel"),
        ("letoh", "hotel"),
        ("row 18 of 40", "row 17 of 40"),
        ("some sought thing", "some sought thing,"),
        ([811, 402, 999], [811, 402]),
        ([402, 999], [811, 402, 999]),
        ([811, 402, 999], [999, 402, 811]),
        ([402, 811, 999], [999, 402, 811]),
        ([811, 402, 999], [810, 401, 998]),
        ((811, 402), [811, 402]),
        ({"one": 811, "two": 403}, {"one": 811, "two": 402}),
        ({811, 402, 999}, {811, 402}),
        ([811, 811, 402], [811, 402]),
    ],
)
def test_what_is_near_the_unsolved_answer_is_likely(value: object, unsolved: object) -> None:
    known = KnownText([b"999 items"])
    assert chance(value, unsolved, known=known) > SEALED
    assert chance(value, unsolved, known=known) > chance(value, known=known)


def test_a_known_number_is_a_likely_step() -> None:
    assert chance(9077, 4366) == FLOOR
    assert chance(9077, 4366, known=KnownText([b"FEE = 4711"])) > SEALED
    assert chance(9079, 1297, known=KnownText([b"7 days"])) > SEALED


def test_one_guess_serves_many_values() -> None:
    shifted = [ways_of(number + 1, [number], NOTHING) for number in range(4000, 4040)]
    assert chance_of_all(shifted) == chance_of_all(shifted[:1]) > SEALED
    nested = [ways_of([[12, number + 1], number], [[[11, number], number - 1]], NOTHING) for number in range(400, 440)]
    assert chance_of_all([*shifted, *nested]) == chance_of_all(shifted)
    apart = [ways_of(number + step, [number], NOTHING) for step, number in enumerate(range(4000, 4040), 7)]
    assert chance_of_all(apart) < FLOOR


def test_which_answers_are_wrong_has_to_be_guessed_too() -> None:
    wrong = [811, 402, 999, 530, 617, 204, 318, 725, 666, 947]
    few = [number + (place % 2) for place, number in enumerate(wrong)]
    assert chance([number + 1 for number in wrong], wrong) > SEALED
    assert chance(few, wrong) < SEALED


def test_which_function_answers_wrongly_is_seen() -> None:
    wrong = [811, 402, 999, 530, 617, 204, 318, 725, 666, 947]
    right = [number + (1 if place % 2 else -1) for place, number in enumerate(wrong)]
    each = [ways_of(value, [old], NOTHING) for value, old in zip(right, wrong, strict=True)]
    assert chance_of_all(each) > SEALED, "start() is asked for every other, and end() for the rest"
    by_function = ", ".join(f"start({n})" if n % 2 else f"end({n})" for n in range(10)).encode()
    in_one_list = [
        chance_of_all([ways_of(right, [wrong], NOTHING, askers_of(compared, right))])
        for compared in (b"[" + by_function + b"]", b"[start(n) for n in ns]", b"ends(3)", b"[...starts, ...ends]")
    ]
    assert [one > SEALED for one in in_one_list] == [True, False, False, True]


def test_many_values_are_priced_in_linear_time() -> None:
    many = [{f"{number:+}": 0.01, f"= {number}": 0.001} for number in range(5_000)]
    begun = time.process_time()
    assert chance_of_all(many) < FLOOR
    assert time.process_time() - begun < 3


def test_an_unlikely_value_and_known_ones_are_as_unlikely_as_it_alone() -> None:
    known = KnownText([TEXT])
    assert chance_of_all([ways_of(43, [], known), ways_of(4711, [], known)]) == FLOOR
    assert chance_of_all([ways_of(43, [], known)]) == chance_of_all([]) == 1


@given(st.lists(st.tuples(PLAIN, st.lists(PLAIN, max_size=2)), max_size=6), PLAIN)
def test_any_values_have_a_chance(values: list[tuple[Any, list[Any]]], shown: Any) -> None:
    known = KnownText([repr(shown).encode("utf-8", "replace")])
    ways = [ways_of(value, unsolved, known) for value, unsolved in values]
    assert all(0 < one <= 1 for each in ways for one in each.values())
    found = chance_of_all(ways)
    assert 0 <= found <= 1
    assert found <= chance_of_all(ways[:-1])


@given(st.lists(st.text(max_size=20) | st.none(), max_size=4))
def test_what_was_reported_is_read_where_it_can_be(texts: list[object]) -> None:
    assert answers_of(["[1, 2]", "", "f(", *texts, "'x'"])[0] == [1, 2]
    assert answers_of([*texts, "'x'"])[-1] == "x"


def test_what_comes_last_in_much_text_is_unknown() -> None:
    much = b" " * LARGEST
    assert chance(43, known=KnownText([TEXT, much])) == chance(43, known=KnownText([much], KnownText([TEXT]))) == 1
    assert chance(43, known=KnownText([much, TEXT])) < 1


def test_constant_expressions_of_a_file_are_known() -> None:
    found = list(computed_values(SUMS))
    known = KnownText([repr(found).encode()])
    assert all(known.knows(value) for value in (43, 44, 86, [25, 36], 61, 62, "aaa"))
    assert list(computed_values(b"def f(:")) == []
