"""The trust region: tokens whose probability has moved far enough in the direction that their advantage pushes.

Tokens of older versions would otherwise be pushed the same way step after step, until the policy collapses. A region by
ratio holds back rare tokens, which it lets grow by a constant factor only; one by difference lets them grow at once,
and holds back frequent ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from etude.recipe.rl import RlRecipe


class TrustRegion(Protocol):
    def left(self, delta_n: Tensor, engine_n: Tensor, advantage_n: Tensor) -> Tensor:
        """Return which tokens have left the region in their advantage's direction. `engine_n` holds the engine's
        log-probs, `delta_n` the trainer's minus the engine's."""


@dataclass(frozen=True, slots=True)
class ByRatio:
    """Bounds of the ratio of the trainer's to the engine's probability."""

    lowest: float
    highest: float

    def left(self, delta_n: Tensor, engine_n: Tensor, advantage_n: Tensor) -> Tensor:
        ratio_n = delta_n.exp()
        return torch.where(advantage_n > 0, ratio_n > self.highest, ratio_n < self.lowest)


@dataclass(frozen=True, slots=True)
class ByDifference:
    """How far the trainer's probability may lie below and above the engine's."""

    fall: float
    rise: float

    def left(self, delta_n: Tensor, engine_n: Tensor, advantage_n: Tensor) -> Tensor:
        moved_n = engine_n.exp() * delta_n.expm1()
        return torch.where(advantage_n > 0, moved_n > self.rise, moved_n < -self.fall)


def trust_region(recipe: RlRecipe) -> TrustRegion:
    if recipe.trust_by == "difference":
        return ByDifference(*recipe.trust_difference)
    return ByRatio(*recipe.trust)
