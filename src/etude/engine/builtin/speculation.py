"""Draft verification by exact rejection sampling: the output has the main head's distribution, with or without a draft.

The draft d for a position was drawn from q. With the main head's p for that position, d is accepted with probability
min(1, p(d) / q(d)); otherwise the token is drawn from max(p - q, 0), normalised. The two cases add up to p(x) for every
x. The reported log-prob is log p of the resulting token. After an accepted draft one more token is drawn from the main
head, whose logits the same pass already computed. Greedy rows accept exactly the most probable token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.engine.builtin.sampling import Stream, Tempered, draw, logprobs, uniforms


@dataclass(slots=True)
class Draft:
    """Proposed next tokens, one per row, for the position after the pending token."""

    tokens_b: Tensor
    probabilities_bv: Tensor
    """The distributions the tokens were drawn from. Kept because weights may be swapped before verification."""
    there_b: Tensor
    """False where a row has no usable draft, for example because it has just begun."""

    @classmethod
    def none(cls, rows: int, vocab_size: int) -> Draft:
        tokens = torch.zeros(rows, dtype=torch.int64)
        return cls(tokens, torch.zeros(rows, vocab_size), torch.zeros(rows, dtype=torch.bool))

    def select(self, places_b: Tensor) -> Draft:
        """Select the rows at these places; -1 gives a row without a draft."""
        if not self.tokens_b.numel():
            return Draft.none(places_b.numel(), self.probabilities_bv.shape[1])
        taken = places_b.clamp(min=0)
        return Draft(self.tokens_b[taken], self.probabilities_bv[taken], self.there_b[taken] & (places_b >= 0))


@dataclass(frozen=True, slots=True)
class Verified:
    tokens_b2: Tensor
    logprobs_b2: Tensor
    accepted_b: Tensor
    """Where True both columns hold sampled tokens, otherwise only the first."""
    finite_b: Tensor
    """False where the network produced a logit that is not finite; the rest of that row is then meaningless."""


def propose(
    logits_bv: Tensor, temperatures_b: Tensor, seeds_b: NDArray[np.uint64], positions_b: NDArray[np.int64]
) -> Draft:
    """Draft the tokens at `positions_b`. `logits_bv` is overwritten."""
    tempered = Tempered.of(logits_bv, temperatures_b)
    tokens = tempered.draw(uniforms(seeds_b, positions_b, Stream.DRAFT))
    totals = tempered.totals()
    return Draft(tokens, tempered.weights_bv.div_(totals[:, None]), torch.isfinite(totals))


def verify(
    logits_b2v: Tensor,
    draft: Draft,
    temperatures_b: Tensor,
    seeds_b: NDArray[np.uint64],
    positions_b: NDArray[np.int64],
) -> Verified:
    """Sample the tokens at `positions_b` and, where the draft is accepted, at the next positions. Overwrites the
    logits."""
    rows, _, vocab = logits_b2v.shape
    tempered = Tempered.of(logits_b2v.view(2 * rows, vocab), temperatures_b.repeat_interleave(2))
    weights_b2v, totals_b2 = tempered.weights_bv.view(rows, 2, vocab), tempered.totals().view(rows, 2)
    first, ahead = weights_b2v[:, 0], weights_b2v[:, 1]
    accepted = _accepted(first, totals_b2[:, 0], draft, uniforms(seeds_b, positions_b, Stream.ACCEPT))
    spare = uniforms(seeds_b, positions_b, Stream.TOKEN)
    tokens = torch.stack((draft.tokens_b, draw(ahead, uniforms(seeds_b, positions_b + 1, Stream.TOKEN))), dim=1)
    if tempered.greedy_b is not None:
        best_b2 = weights_b2v.argmax(-1)
        greedy = temperatures_b == 0
        accepted = torch.where(greedy, draft.there_b & (best_b2[:, 0] == draft.tokens_b), accepted)
        tokens = torch.where(greedy[:, None], best_b2, tokens)
        redraw = ~accepted & ~greedy
    else:
        redraw = ~accepted
    left = redraw.nonzero().squeeze(1)
    if left.numel():
        rest = _rest(first[left], totals_b2[left, 0], draft.probabilities_bv[left], draft.there_b[left])
        tokens[left, 0] = draw(rest, spare[left])
    flat = logprobs(tempered.weights_bv, totals_b2.flatten(), tokens.flatten())
    # The second column counts only after an accepted draft; elsewhere it may be padding.
    finite = torch.isfinite(totals_b2)
    return Verified(tokens, flat.view(rows, 2), accepted, finite[:, 0] & (finite[:, 1] | ~accepted))


def _accepted(weights_bv: Tensor, totals_b: Tensor, draft: Draft, uniforms_b: Tensor) -> Tensor:
    drafted = draft.tokens_b[:, None]
    p = weights_bv.gather(1, drafted).squeeze(1) / totals_b
    q = draft.probabilities_bv.gather(1, drafted).squeeze(1)
    return draft.there_b & (uniforms_b * q < p)


def _rest(weights_bv: Tensor, totals_b: Tensor, probabilities_bv: Tensor, there_b: Tensor) -> Tensor:
    """Return max(p - q, 0), or p itself for rows without a draft."""
    p = weights_bv / totals_b[:, None]
    rest = (p - torch.where(there_b[:, None], probabilities_bv, 0.0)).clamp_(min=0)
    # p and q are equal except for rounding: a refusal then has almost zero probability, and any of p's tokens is right.
    empty = rest.sum(-1) == 0
    return torch.where(empty[:, None], p, rest) if bool(empty.any()) else rest
