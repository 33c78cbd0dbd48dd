import math

import numpy as np
import pytest

from etude.engine.probe import BOUNDS, Bound, compare, prompts


def test_a_comparison_is_of_absolute_differences_in_nats():
    trainer = np.array([[-1.0, -2.0], [-3.0, -4.0]], np.float32)
    found = compare(trainer, trainer + np.array([[0.0, 0.1], [-0.1, 0.4]], np.float32))
    assert found.mean == pytest.approx(0.15, abs=1e-6)
    assert found.largest == pytest.approx(0.4, abs=1e-6)
    assert found.p99 == pytest.approx(0.1 + 0.97 * 0.3, abs=1e-6)
    assert found.k3 == pytest.approx(sum(math.exp(d) - 1 - d for d in (0, -0.1, 0.1, -0.4)) / 4, abs=1e-6)


@pytest.mark.parametrize("fault", [float("nan"), float("-inf")])
def test_what_is_no_number_is_beyond_any_bound(fault):
    fine = np.zeros((4, 48), np.float32)
    broken = fine.copy()
    broken[3, 47] = fault
    for pair in ((fine, broken), (broken, broken)):
        assert Bound(1e9, 1e9).refusal(compare(*pair)) is not None
    assert BOUNDS["float32"].refusal(compare(fine, fine)) is None


def test_either_bound_refuses_alone():
    assert "mean 0.0500" in Bound(0.04, 1.0).refusal(compare(np.zeros(100), np.full(100, 0.05)))
    rare = np.zeros(100)
    rare[:2] = 0.5
    assert Bound(0.04, 0.3).refusal(compare(np.zeros(100), rare)) is not None
    assert Bound(0.04, 0.6).refusal(compare(np.zeros(100), rare)) is None


def test_prompts_are_always_the_same_ids_of_the_vocabulary():
    np.testing.assert_array_equal(prompts(61), prompts(61))
    assert prompts(61).max() < 61
    assert len({row.tobytes() for row in prompts(61)}) == len(prompts(61))
