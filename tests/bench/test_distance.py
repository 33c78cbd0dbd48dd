"""The edit distance is that of the plain table, and shares stay between 0 and 1."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.bench.distance import edit_distance, share_wrong

TEXTS = st.one_of(st.text("ab\n", max_size=24), st.text(max_size=12), st.text("a", max_size=40))


def plain_table(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for n, mine in enumerate(one, start=1):
        above, row = row, [n]
        for m, theirs in enumerate(other, start=1):
            row.append(min(above[m] + 1, row[-1] + 1, above[m - 1] + (mine != theirs)))
    return row[-1]


@given(TEXTS, TEXTS)
def test_the_distance_is_that_of_the_plain_table(one: str, other: str) -> None:
    assert edit_distance(one, other) == plain_table(one, other)
    assert 0 <= share_wrong(one, other) <= 1
    assert (share_wrong(one, other) == 0) is (one == other)


def test_what_is_far_too_long_is_wrong_and_not_compared_to_its_end() -> None:
    assert share_wrong("x" * 5_000_000, "def f():\n" * 100) == 1.0
    right = "def f():\n" * 100
    assert 0.99 < share_wrong(right + "y" * 1_000_000, right) < 1
