from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.rollout import estimate, paired, pass_at_k


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=7), data=st.data())
def test_pass_at_k_is_the_mean_over_all_ways_to_draw_k(outcomes, data):
    k = data.draw(st.integers(1, len(outcomes)))
    draws = list(combinations(outcomes, k))
    exact = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(exact)


def test_pass_at_k_needs_k_samples():
    with pytest.raises(ValueError, match="pass@3"):
        pass_at_k(2, 1, 3)


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_an_interval_holds_its_mean(values):
    found = estimate(values)
    assert found is not None
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    assert estimate(values) == found


def test_an_interval_covers_as_often_as_it_says():
    import numpy as np

    rng = np.random.default_rng(0)
    found = [estimate(rng.binomial(1, 0.3, 60), seed) for seed in range(150)]
    assert 0.88 <= sum(f.low <= 0.3 <= f.high for f in found) / 150 <= 1.0


def test_nothing_to_estimate():
    assert estimate([]) is None
    assert paired({"a": 1.0}, {"b": 1.0}) is None


def test_paired_by_task():
    found = paired({"a": 0.0, "b": 0.5, "c": 1.0, "x": 1.0}, {"a": 1.0, "b": 0.5, "c": 0.5, "y": 0.0})
    assert (found.better, found.worse, found.equal) == (1, 1, 1)
    assert found.difference.mean == pytest.approx(0.5 / 3)
