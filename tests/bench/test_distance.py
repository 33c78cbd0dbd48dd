"""The edit distance is that of the plain table, and shares stay between 0 and 1."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from etude.bench.distance import edit_distance, share_wrong

ALPHABETS = st.sampled_from(["ab", "ab\n", "abcdefg", "añ\U0001f600"])
PAIRS = ALPHABETS.flatmap(lambda letters: st.tuples(*[st.text(letters, max_size=24)] * 2))


def plain_table(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for n, mine in enumerate(one, start=1):
        above, row = row, [n]
        for m, theirs in enumerate(other, start=1):
            row.append(min(above[m] + 1, row[-1] + 1, above[m - 1] + (mine != theirs)))
    return row[-1]


@settings(max_examples=300)
@given(PAIRS)
def test_the_distance_is_that_of_the_plain_table(pair: tuple[str, str]) -> None:
    one, other = pair
    assert edit_distance(one, other) == plain_table(one, other)
    assert 0 <= share_wrong(one, other) <= 1
    assert (share_wrong(one, other) == 0) is (one == other)


def test_the_distances_of_all_short_texts() -> None:
    texts = ["".join(letters) for length in range(6) for letters in product("ab", repeat=length)]
    for one, other in product(texts, texts):
        assert edit_distance(one, other) == plain_table(one, other)


def test_what_is_far_too_long_is_wrong_and_not_compared_to_its_end() -> None:
    assert share_wrong("x" * 5_000_000, "def f():\n" * 100) == 1.0
    right = "def f():\n" * 100
    assert 0.99 < share_wrong(right + "y" * 1_000_000, right) < 1
