"""Reward: named terms computed from a Trace and a Verdict.

Invariant (property-tested): the shaping terms together never rank an unsolved trace above, or level with, a solved one.
Their sum is squeezed below half of the reward for solving; near zero the squeeze changes almost nothing.

The KL penalty is not a shaping term and is not squeezed. It is proportional to the sum of k1 = log pi - log pi_ref
over a rollout. As part of the reward, this sum yields the gradient of the KL divergence on average. A squeezed sum
would not: where the policy has drifted far from the reference, its gradient would vanish.

The length cost is an increasing, concave function of a rollout's effort: a quick answer to an easy task gains a lot,
while long thought on a hard task costs little more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from etude.recipe.rl import LengthCostRecipe, RewardRecipe
from etude.tasks import Verdict
from etude.trace import Trace, TraceUsage

_COUNTED_INVALID_CALLS = 5
_SQUEEZE = 0.49


@dataclass(frozen=True, slots=True)
class Reward:
    solved: float
    shaping: dict[str, float]
    """Shaping terms by name, before the squeeze (a tanh), which bounds their sum only. Costs are negative."""
    kl: float
    """KL term of `total`: positive where the policy makes the tokens less likely than the reference does."""
    total: float


def score(trace: Trace, verdict: Verdict, recipe: RewardRecipe, *, kl: float = 0.0) -> Reward:
    """Compute the reward of one valid rollout. `kl` is the sum of k1 = log pi - log pi_ref over its sampled tokens."""
    if not verdict.judgement.valid:
        raise ValueError(f"a verdict of {verdict.judgement} has no reward: it is masked")
    length = recipe.length
    shaping = {
        "length": -length.scale * length_cost(effort(trace.usage, length), k=length.k, q=length.q),
        "truncated": -recipe.truncated * trace.stop.truncated,
        "false_claim": -recipe.false_claim * (not trace.stop.truncated and not verdict.passed),
        "invalid_calls": -recipe.invalid_call * min(trace.usage.invalid_calls, _COUNTED_INVALID_CALLS),
    }
    solved = recipe.passed * verdict.passed
    bound = _SQUEEZE * recipe.passed
    charged = -recipe.kl * kl
    return Reward(solved, shaping, charged, solved + bound * math.tanh(sum(shaping.values()) / bound) + charged)


def length_cost(x: float, *, k: float, q: float) -> float:
    """Return the cost, before scaling, of a rollout's effort x, a weighted sum of its tokens, calls and turns: ((1 + k
    x)^(1-q) - 1) / (k (1-q)). At q = 1 this is the limit, ln(1 + k x) / k."""
    if x < 0:
        raise ValueError(f"effort must not be negative, found {x}")
    grown = math.log1p(k * x)
    exponent = 1.0 - q
    if abs(exponent * grown) < 1e-12:
        return grown / k
    return math.expm1(exponent * grown) / (k * exponent)


def effort(usage: TraceUsage, recipe: LengthCostRecipe) -> float:
    """Return the effort that a rollout spent: the sum of its usage counts, weighted by the recipe."""
    return (
        recipe.thinking_tokens * usage.thinking_tokens
        + recipe.call_tokens * usage.call_tokens
        + recipe.output_tokens * usage.output_tokens
        + recipe.message_tokens * usage.message_tokens
        + recipe.tool_calls * usage.tool_calls
        + recipe.turns * usage.turns
    )
