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


_SORTED_AT_ONCE = 8
"""Rows that are sorted at once, since that takes 40 bytes for each token of the vocabulary."""


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
    def of(cls, logits_bv: Tensor, temperatures_b: Tensor, top_ps_b: Tensor | None = None) -> Tempered:
        """Compute the probabilities, for greedy rows (temperature 0) at temperature 1 and of all tokens. `logits_bv` is
        overwritten. `temperatures_b` and `top_ps_b` (None: all 1) are in the host's memory, where they decide what has
        to be computed."""
        greedy = temperatures_b == 0
        any_greedy = bool(greedy.any())
        if any_greedy:
            temperatures_b = temperatures_b.masked_fill(greedy, 1.0)
        peak = logits_bv.amax(-1, keepdim=True)
        logits_bv -= peak
        if not bool((temperatures_b == 1).all()):
            logits_bv /= temperatures_b[:, None].to(logits_bv.device)
        weights_bv = logits_bv.exp_()
        if top_ps_b is not None and bool((top_ps_b < 1).any()):
            for rows in ((top_ps_b < 1) & ~greedy).nonzero().squeeze(1).split(_SORTED_AT_ONCE):
                here = rows.to(weights_bv.device)
                weights_bv[here] = _most_probable(weights_bv[here], top_ps_b[rows].to(weights_bv.device))
        return cls(weights_bv, greedy.to(logits_bv.device) if any_greedy else None)

    def totals(self) -> Tensor:
        return self.weights_bv.sum(-1)

    def draw(self, uniforms_b: Tensor) -> Tensor:
        tokens = draw(self.weights_bv, uniforms_b)
        if self.greedy_b is None:
            return tokens
        return torch.where(self.greedy_b, self.weights_bv.argmax(-1), tokens)


def _most_probable(weights_bv: Tensor, shares_b: Tensor) -> Tensor:
    """Return the weights of the fewest tokens that together have at least this share of each row's sum, and 0 for all
    others."""
    sorted_bv, order_bv = torch.sort(weights_bv.to(torch.float64), dim=-1, descending=True, stable=True)
    sums_bv = _cumulated(sorted_bv)
    left_out_bv = sums_bv - sorted_bv >= shares_b[:, None] * sums_bv[:, -1:]
    left_out_bv[:, 0] = False
    return weights_bv.masked_fill(torch.zeros_like(left_out_bv).scatter_(1, order_bv, left_out_bv), 0.0)


def draw(weights_bv: Tensor, uniforms_b: Tensor) -> Tensor:
    """Draw one token per row in proportion to the weights. A token of weight 0 is never drawn.

    This inverts the cumulative distribution in two levels: first the block of tokens is found, then the token in it. So
    no tensor of all tokens' size is made, and thousands of small numbers are not added to one large sum in fp32."""
    vocab = weights_bv.shape[1]
    size = 1 << (vocab.bit_length() + 1) // 2  # about the square root of the vocabulary, so that both levels are short
    whole = vocab // size * size
    sums_bn = weights_bv[:, :whole].unflatten(1, (-1, size)).sum(-1)
    if whole < vocab:
        sums_bn = torch.cat((sums_bn, weights_bv[:, whole:].sum(-1, keepdim=True)), dim=1)
    sums_bn = sums_bn.to(torch.float64)
    shares_b1 = uniforms_b.to(weights_bv.device, torch.float64).unsqueeze(1)
    block_b1, rest_b1 = _first_beyond(sums_bn, shares_b1 * sums_bn.sum(-1, keepdim=True))
    tokens_bs = block_b1 * size + torch.arange(size, device=weights_bv.device)
    beyond_bs = tokens_bs >= vocab
    weights_bs = weights_bv.gather(1, tokens_bs.clamp(max=vocab - 1)).to(torch.float64).masked_fill_(beyond_bs, 0.0)
    return (block_b1 * size + _first_beyond(weights_bs, rest_b1)[0]).squeeze(1).clamp_(max=vocab - 1)


def _first_beyond(weights_bn: Tensor, threshold_b1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first column of each row at which the cumulative sum exceeds the threshold, and by how much the
    threshold exceeds the sum of the columns before."""
    cumulated = _cumulated(weights_bn)
    total = cumulated[:, -1:]
    # The threshold stays below the total, since rounding could otherwise select a column after the last of weight > 0.
    threshold_b1 = torch.minimum(threshold_b1, torch.nextafter(total, torch.zeros_like(total)))
    column = torch.searchsorted(cumulated, threshold_b1, right=True).clamp_(max=weights_bn.shape[1] - 1)
    return column, threshold_b1 - (cumulated.gather(1, column) - weights_bn.gather(1, column))


def _cumulated(x_bn: Tensor) -> Tensor:
    # On GPUs torch's cumulative sum of floating-point numbers is not deterministic.
    return x_bn.cumsum(-1) if x_bn.is_cpu else _cumulated_by_doubling(x_bn)


def _cumulated_by_doubling(x_bn: Tensor) -> Tensor:
    step = 1
    while step < x_bn.shape[1]:
        x_bn = torch.cat((x_bn[:, :step], x_bn[:, step:] + x_bn[:, :-step]), dim=1)
        step *= 2
    return x_bn


def logprobs(weights_bv: Tensor, totals_b: Tensor, tokens_b: Tensor) -> Tensor:
    return weights_bv.gather(1, tokens_b[:, None]).squeeze(1).log() - totals_b.log()
