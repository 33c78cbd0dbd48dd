"""Alternatives are unequal, alike, and do not point at the value they stand for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.verifiers.tests.altering import alternatives, other_exceptions
from etude.tasks.verifiers.tests.naming import Names

VALUES = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=8)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        | st.frozensets(st.integers(), max_size=3).map(set)
    ),
    max_leaves=5,
)


@given(VALUES, st.integers(1, 20), st.integers())
def test_alternatives_are_other_values_of_the_type(value: Any, count: int, seed: int) -> None:
    found = alternatives(value, count, random.Random(seed))
    assert len(found) <= count
    for other in found:
        assert type(other) is type(value)
        assert other != value
    assert len({repr(other) for other in found}) == len(found)


@pytest.mark.parametrize("value", [7, -3, 0, 1200, 2.5, "3 EUR", "word", [1, 2], (4,), {"a": 1}, True, b"x1"])
def test_ordinary_values_have_alternatives(value: object) -> None:
    assert alternatives(value, 9, random.Random(1))


@pytest.mark.parametrize("values", [range(40), range(500, 540)])
def test_a_number_has_no_place_of_its_own_among_its_alternatives(values: range) -> None:
    """Drawn as often as its neighbours, it is the lowest, the highest and the middle one as often as by chance."""
    ranks: Counter[int] = Counter()
    rng = random.Random(5)
    for _ in range(100):
        for value in values:
            row = sorted([value, *alternatives(value, 9, rng)])  # type: ignore[type-var]
            ranks[row.index(value)] += 1
    expected = 100 * len(values) / 10
    assert all(0.75 * expected < ranks[rank] < 1.25 * expected for rank in range(10)), ranks


def test_texts_and_rows_differ_from_each_other_where_they_differ_from_the_value() -> None:
    rng = random.Random(2)
    for value in ("total 17", "some words", ["a", "b", "c"]):
        rows = [list(value), *map(list, alternatives(value, 6, rng))]  # type: ignore[call-overload]
        places = {place for row in rows for place in range(len(row)) if row[place] != rows[0][place]}
        assert len(places) == 1, "or the value would be the one between all the others"


def test_other_exceptions_neither_include_nor_are_included() -> None:
    assert "KeyError" not in other_exceptions("LookupError")
    assert "ZeroDivisionError" not in other_exceptions("ArithmeticError")
    assert set(other_exceptions("ValueError")) >= {"TypeError", "KeyError"}
    assert other_exceptions("Exception") == other_exceptions("OwnError") == other_exceptions("print") == []


@given(st.lists(st.sampled_from(["test_a_b", "testCamelCase", "test_x", "works with words", "test"])), st.integers())
def test_names_are_fresh_each_once_and_of_the_files_manner(known: list[str], seed: int) -> None:
    names = Names(known, random.Random(seed))
    drawn = [names.draw() for _ in range(200)]
    assert len({*drawn, *known}) == len(drawn) + len(set(known))
    spaced = any(" " in name for name in known)
    assert all((" " in name) if spaced else name.isidentifier() and name.startswith("test") for name in drawn)


def test_names_are_made_of_the_neighbours_words() -> None:
    names = Names(["test_invoice_rounding", "test_currency_label"], random.Random(1))
    words = Counter(word for _ in range(60) for word in names.draw().split("_")[1:])
    assert all(words[word] for word in ("invoice", "rounding", "currency"))
