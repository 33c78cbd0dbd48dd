from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.rollout import across_seeds, estimate, over_seeds, paired, pass_at_k


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


@given(
    values=st.lists(st.lists(st.floats(0, 1), max_size=9), max_size=4),
)
def test_over_seeds_each_seed_weighs_the_same(values):
    found = over_seeds(values)
    there = [tasks for tasks in values if tasks]
    if not there:
        assert found is None
        return
    assert found.mean == pytest.approx(float(np.mean([np.mean(tasks) for tasks in there])))
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    assert found.tasks == sum(map(len, there))
    assert over_seeds(values) == found


def test_one_seed_is_an_estimate_over_its_tasks():
    assert over_seeds([[0.0, 1.0, 1.0]], 4) == estimate([0.0, 1.0, 1.0], 4)


def test_seeds_that_differ_widen_the_interval():
    tasks = list(np.random.default_rng(1).normal(0.5, 0.2, 300))
    alike = over_seeds([tasks, tasks, tasks])
    apart = over_seeds([[t + shift for t in tasks] for shift in (-0.1, 0.0, 0.1)])
    assert apart.high - apart.low > 2 * (alike.high - alike.low)


@pytest.mark.parametrize(
    ("spread", "least"),
    [
        (0.0, 0.93),
        (0.045, 0.87),  # as much as the tasks of one seed alone would let its mean move
    ],
)
def test_over_seeds_covers_as_often_as_it_says(spread, least):
    """Three seeds of 100 tasks; with 200 trials a share of .95 falls below .92 once in a hundred times."""
    rng, held = np.random.default_rng(0), 0
    for trial in range(200):
        seeds = [rng.normal(0.1 + rng.normal(0, spread), 0.45, 100) for _ in range(3)]
        found = over_seeds([list(tasks) for tasks in seeds], trial)
        held += found.low <= 0.1 <= found.high
    assert held / 200 >= least


def test_across_seeds_is_students_interval():
    found = across_seeds([1.0, 2.0, 3.0])
    assert (found.mean, found.tasks) == (2.0, 3)
    assert found.high - 2.0 == pytest.approx(4.303 / 3**0.5)
    assert across_seeds([1.0]) is None


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 30])
def test_across_seeds_covers_as_often_as_it_says(seeds):
    draws = np.random.default_rng(0).normal(0.3, 0.1, (2000, seeds))
    held = sum(found.low <= 0.3 <= found.high for found in map(across_seeds, draws))
    assert 0.925 <= held / 2000 <= 0.97
