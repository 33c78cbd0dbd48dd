from __future__ import annotations

import math
from itertools import product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.recipe.rl import LengthCostRecipe, RewardRecipe
from etude.rl.advantage import Dropped, group_advantages
from etude.rl.reward import effort, length_cost, score
from etude.tasks.verdict import Judgement, Verdict
from etude.trace.trace import StopCause, Trace, TraceUsage

counts = st.integers(0, 100_000)
usages = st.builds(
    TraceUsage,
    turns=counts,
    tool_calls=counts,
    invalid_calls=counts,
    thinking_tokens=counts,
    call_tokens=counts,
    output_tokens=counts,
    message_tokens=counts,
)
recipes = st.builds(
    RewardRecipe,
    passed=st.floats(0.1, 10),
    truncated=st.floats(0, 10),
    false_claim=st.floats(0, 10),
    invalid_call=st.floats(0, 10),
    length=st.builds(LengthCostRecipe, scale=st.floats(0, 10), k=st.floats(0.01, 5), q=st.floats(0, 3)),
)


def trace(usage: TraceUsage, stop: StopCause = StopCause.FINISHED) -> Trace:
    return Trace("t", "task", "train", "g", 0, "policy", 0, usage=usage, stop=stop)


@given(recipe=recipes, solved=usages, unsolved=usages)
def test_shaping_never_ranks_an_unsolved_trace_above_a_solved_one(
    recipe: RewardRecipe, solved: TraceUsage, unsolved: TraceUsage
) -> None:
    passed = score(trace(solved, StopCause.TURNS), Verdict(Judgement.PASS, ""), recipe)
    failed = score(trace(unsolved), Verdict(Judgement.FAIL, ""), recipe)
    assert passed.total > failed.total


@given(usage=usages, weight=st.floats(0, 1), kl=st.floats(-1e3, 1e3))
def test_the_kl_is_charged_as_it_is(usage: TraceUsage, weight: float, kl: float) -> None:
    free, charged = (
        score(trace(usage), Verdict(Judgement.FAIL, ""), RewardRecipe(kl=weight), kl=nats) for nats in (0.0, kl)
    )
    assert charged.total - free.total == pytest.approx(-weight * kl)
    assert charged.shaping == free.shaping


def test_small_shaping_enters_almost_unchanged() -> None:
    recipe = RewardRecipe(length=LengthCostRecipe(scale=0))
    reward = score(trace(TraceUsage(invalid_calls=2), StopCause.TURNS), Verdict(Judgement.FAIL, ""), recipe)
    assert reward.shaping == {"length": -0.0, "truncated": -0.1, "false_claim": 0.0, "invalid_calls": -0.04}
    assert reward.total == pytest.approx(-0.14, abs=0.004)


@pytest.mark.parametrize(
    ("stop", "judgement", "cost"),
    [
        (StopCause.FINISHED, Judgement.FAIL, 0.2),
        (StopCause.REPLIED, Judgement.SUSPECT, 0.2),
        (StopCause.FINISHED, Judgement.PASS, 0.0),
        (StopCause.TURNS, Judgement.FAIL, 0.0),
    ],
)
def test_to_end_a_task_as_done_that_is_not_has_its_price(stop: StopCause, judgement: Judgement, cost: float) -> None:
    reward = score(trace(TraceUsage(), stop), Verdict(judgement, ""), RewardRecipe(false_claim=0.2))
    assert reward.shaping["false_claim"] == -cost


def test_suspect_counts_as_unsolved_and_errors_have_no_reward() -> None:
    recipe = RewardRecipe()
    assert score(trace(TraceUsage()), Verdict(Judgement.SUSPECT, ""), recipe).solved == 0
    with pytest.raises(ValueError, match="masked"):
        score(trace(TraceUsage()), Verdict(Judgement.ERROR, ""), recipe)


@given(k=st.floats(0.01, 5), q=st.floats(0, 3), x=st.floats(0, 1e5), more=st.floats(1e-3, 1e3))
def test_length_cost_is_increasing_and_concave(k: float, q: float, x: float, more: float) -> None:
    low, middle, high = (length_cost(v, k=k, q=q) for v in (x, x + more, x + 2 * more))
    assert low <= middle <= high
    assert high - middle <= (middle - low) * (1 + 1e-6) + 1e-9


@given(k=st.floats(0.01, 5), x=st.floats(0, 1e5))
def test_length_cost_is_continuous_at_q_one(k: float, x: float) -> None:
    at_one = length_cost(x, k=k, q=1.0)
    assert at_one == pytest.approx(math.log1p(k * x) / k)
    for q in (1 - 1e-9, 1 + 1e-9):
        assert length_cost(x, k=k, q=q) == pytest.approx(at_one, rel=1e-6, abs=1e-12)


@given(k=st.floats(0.01, 5), q=st.floats(0, 3))
def test_the_first_unit_of_effort_costs_one(k: float, q: float) -> None:
    assert length_cost(0.0, k=k, q=q) == 0
    assert length_cost(1e-6, k=k, q=q) / 1e-6 == pytest.approx(1.0, rel=1e-3)


def test_effort_weighs_all_six_inputs() -> None:
    usage = TraceUsage(turns=1, tool_calls=2, thinking_tokens=3, call_tokens=4, output_tokens=5, message_tokens=6)
    recipe = LengthCostRecipe(
        turns=1, tool_calls=10, thinking_tokens=100, call_tokens=1000, output_tokens=1e4, message_tokens=1e5
    )
    assert effort(usage, recipe) == 654321


@given(st.lists(st.one_of(st.none(), st.floats(-1, 2)), min_size=1, max_size=8), st.floats(0, 0.5))
def test_advantages_are_centred_on_the_valid_members(rewards: list[float | None], spread: float) -> None:
    result = group_advantages(rewards, min_spread=spread)
    valid = [r for r in rewards if r is not None]
    if len(valid) < 2:
        assert result.dropped is Dropped.TOO_FEW_VALID
    elif max(valid) - min(valid) <= spread:
        assert result.dropped is Dropped.NO_SPREAD
    else:
        assert result.dropped is None
        assert [a is None for a in result.advantages] == [r is None for r in rewards]
        assert sum(a for a in result.advantages if a is not None) == pytest.approx(0, abs=1e-9)
    if result.dropped:
        assert set(result.advantages) == {None}


def test_a_member_is_compared_with_the_mean_of_the_others() -> None:
    advantages = group_advantages([1.0, None, 0.25, 0.0], min_spread=0.0).advantages
    assert advantages == pytest.approx((1.0 - 0.125, None, 0.25 - 0.5, 0.0 - 0.625))


@pytest.mark.parametrize("group", [2, 5])
def test_the_expected_gradient_is_the_policy_gradient(group: int) -> None:
    """Of a policy that takes the rewarded one of two actions with probability p = sigmoid(theta), over all outcomes of
    a group. The policy gradient dE[reward]/dtheta is p (1 - p)."""
    p, expected = 0.3, 0.0
    for rewards in product((0.0, 1.0), repeat=group):
        advantages = group_advantages(rewards, min_spread=0.0).advantages
        probability = math.prod(p if reward else 1 - p for reward in rewards)
        # The derivative of the log-prob of an action is reward - p.
        terms = [(advantage or 0.0) * (reward - p) for advantage, reward in zip(advantages, rewards, strict=True)]
        expected += probability * fmean(terms)
    assert expected == pytest.approx(p * (1 - p))
