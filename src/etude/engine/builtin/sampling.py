"""Sampling of tokens: one inverse-CDF draw per row, and the token's log-prob under the distribution drawn from.

Invariant: the randomness of a token depends only on its request's seed and its position, never on the other rows of the
batch. Everything is vectorised over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
"""Splitmix64's increment: 2^64 divided by the golden ratio."""


class Stream(IntEnum):
    """One random stream per use: a seed, a position and a stream give one uniform number, which affects at most one
    result, so all draws are independent."""

    TOKEN = 0
    """Its numbers draw a position's token from the main head's distribution or, after a rejected draft, from what
    remains of this distribution."""
    DRAFT = 1
    """Its numbers draw the token that the draft head proposes for a position."""
    ACCEPT = 2
    """Its numbers decide whether the draft for a position is accepted."""


def uniforms(seeds_b: NDArray[np.uint64], positions_b: NDArray[np.int64], stream: Stream) -> Tensor:
    """Return one uniform number in the open interval (0, 1) per row: a hash, so there is no generator state."""
    counter = positions_b.astype(np.uint64) * np.uint64(len(Stream)) + np.uint64(int(stream) + 1)
    bits = _mix(_mix(seeds_b) ^ (counter * np.uint64(GOLDEN)))
    odd = (bits >> np.uint64(41)).astype(np.float32) + np.float32(0.5)
    return torch.from_numpy(odd * np.float32(2.0**-23))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of splitmix64: a bijection in which every input bit flips about half of the output bits."""
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Tempered:
    """Token probabilities of each row at its temperature, unnormalised: the largest weight of every row is 1."""

    weights_bv: Tensor
    greedy_b: Tensor | None
    """Whether each row takes the most probable token; None if no row does."""

    @classmethod
    def of(cls, logits_bv: Tensor, temperatures_b: Tensor) -> Tempered:
        """Compute the probabilities, for greedy rows (temperature 0) at temperature 1. `logits_bv` is overwritten."""
        greedy = temperatures_b == 0
        any_greedy = bool(greedy.any())
        if any_greedy:
            temperatures_b = temperatures_b.masked_fill(greedy, 1.0)
        peak = logits_bv.amax(-1, keepdim=True)
        logits_bv -= peak
        if not bool((temperatures_b == 1).all()):
            logits_bv /= temperatures_b[:, None]
        return cls(logits_bv.exp_(), greedy if any_greedy else None)

    def totals(self) -> Tensor:
        return self.weights_bv.sum(-1)

    def draw(self, uniforms_b: Tensor) -> Tensor:
        tokens = draw(self.weights_bv, uniforms_b)
        if self.greedy_b is None:
            return tokens
        return torch.where(self.greedy_b, self.weights_bv.argmax(-1), tokens)


def draw(weights_bv: Tensor, uniforms_b: Tensor) -> Tensor:
    """Draw one token per row in proportion to the weights. A token of weight 0 is never drawn."""
    cumulated = weights_bv.cumsum(-1)
    total = cumulated[:, -1]
    # The threshold stays below the total, since rounding could otherwise select a token after the last with weight > 0.
    threshold = torch.minimum(uniforms_b * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulated, threshold[:, None], right=True).squeeze(1)
    return tokens.clamp_(max=weights_bv.shape[1] - 1)


def logprobs(weights_bv: Tensor, totals_b: Tensor, tokens_b: Tensor) -> Tensor:
    return weights_bv.gather(1, tokens_b[:, None]).squeeze(1).log() - totals_b.log()
