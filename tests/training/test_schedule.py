"""Warm-up, decay, and their edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.recipe.training import OptimizerRecipe
from etude.training import learning_rate


def test_warm_up_then_linear_decay():
    recipe = OptimizerRecipe(lr=1.0, warmup_steps=4, final_lr_share=0.1)
    rates = [learning_rate(recipe, step, 14) for step in range(14)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[9] == pytest.approx(0.55)
    assert rates[13] == pytest.approx(0.19)


@given(st.integers(0, 50), st.integers(1, 200), st.floats(0, 1))
def test_the_rate_stays_within_its_bounds(warmup, total, share):
    recipe = OptimizerRecipe(lr=2.0, warmup_steps=warmup, final_lr_share=share)
    rates = [learning_rate(recipe, step, total) for step in range(total + 3)]
    assert all(0 <= rate <= 2.0 for rate in rates)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
