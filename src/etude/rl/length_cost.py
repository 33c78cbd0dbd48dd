"""The length cost that a reward subtracts: an increasing, concave function of a rollout's effort.

A quick answer to an easy task therefore gains a lot, while long thought on a hard task costs little more.
"""

from __future__ import annotations

import math

from etude.recipe.rl import LengthCostRecipe
from etude.trace import TraceUsage


def length_cost(x: float, *, k: float, q: float) -> float:
    """Return what a rollout's reward loses for its effort x, a weighted sum of tokens, calls and turns: the cost
    ((1 + k x)^(1-q) - 1) / (k (1-q)). At q = 1 this is the limit, ln(1 + k x) / k."""
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
