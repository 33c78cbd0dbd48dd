"""BM25 against the formula written down plainly; what came and went leaves no trace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.chunks.lexical import K1, B, Lexical

SAID = st.lists(st.sampled_from("abcdefg"), max_size=12)


def plain_scores(held: dict[int, list[str]], query: list[str]) -> dict[int, float]:
    average = max(sum(map(len, held.values())), 1) / max(len(held), 1)
    scores: dict[int, float] = {}
    for number, said in held.items():
        total = 0.0
        for term in query:
            holding = sum(term in other for other in held.values())
            rare = math.log(1 + (len(held) - holding + 0.5) / (holding + 0.5))
            times = said.count(term)
            total += rare * times * (K1 + 1) / (times + K1 * (1 - B + B * len(said) / average))
        if set(query) & set(said):
            scores[number] = total
    return scores


@given(st.lists(st.tuples(st.integers(0, 8), st.one_of(st.none(), SAID)), max_size=40), SAID)
def test_changes_end_where_a_fresh_index_is(steps: list[tuple[int, list[str] | None]], query: list[str]) -> None:
    lexical, held = Lexical(), dict[int, list[str]]()
    for number, said in steps:
        if number in held:
            lexical.remove(number)
            del held[number]
        if said is not None:
            lexical.add(number, said)
            held[number] = said
        lexical.scores(query)
    assert len(lexical) == len(held)
    assert lexical.scores(query) == pytest.approx(plain_scores(held, query))


def test_numbers_far_apart() -> None:
    lexical = Lexical()
    lexical.add(10_000, ["a"])
    lexical.add(3, ["b"])
    assert set(lexical.scores(["a"])) == {10_000}
