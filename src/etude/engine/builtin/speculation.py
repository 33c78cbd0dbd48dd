"""Speculative decoding: draws drafts and verifies them by exact rejection sampling, so that tokens have the main head's
distribution, with or without a draft.

A draft d was drawn from the draft head's distribution q. Let p be the main head's distribution for the same position. d
is accepted with probability min(1, p(d) / q(d)); otherwise the token is drawn from max(p - q, 0), normalised. The two
cases add up to p(x) for every x. The reported log-prob is log p of the resulting token. After an accepted draft one
more token is drawn from the main head, whose logits the same pass already computed. Greedy rows accept a draft only if
it is the most probable token.
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
    """The token proposed for the position after each row's last token."""

    tokens_b: Tensor
    probabilities_bv: Tensor
    """The distributions that the tokens were drawn from. Verification needs them even after a swap of the weights."""
    valid_b: Tensor
    """Whether a row has a draft; one that has just begun, for example, has none."""

    @classmethod
    def none(cls, rows: int, vocab_size: int, device: torch.device | str = "cpu") -> Draft:
        tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        return cls(tokens, torch.zeros(rows, vocab_size, device=device), torch.zeros_like(tokens, dtype=torch.bool))

    def to(self, device: torch.device | str) -> Draft:
        return Draft(*(tensor.to(device) for tensor in (self.tokens_b, self.probabilities_bv, self.valid_b)))

    def select(self, indices_b: Tensor) -> Draft:
        """Return the drafts of the rows at these indices; index -1 gives a row without a draft."""
        if not self.tokens_b.numel():
            return Draft.none(indices_b.numel(), self.probabilities_bv.shape[1], self.tokens_b.device)
        indices_b = indices_b.to(self.tokens_b.device)
        taken = indices_b.clamp(min=0)
        return Draft(self.tokens_b[taken], self.probabilities_bv[taken], self.valid_b[taken] & (indices_b >= 0))


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one step sampled for each row."""

    tokens_b2: Tensor
    """The next token and, if the draft was accepted, the one after it."""
    logprobs_b2: Tensor
    accepted_b: Tensor
    """Whether the draft was accepted; if not, the second token and log-prob are meaningless."""
    finite_b: Tensor
    """Whether the logits are finite; if not, the tokens are meaningless."""

    def on_host(self) -> Sampled:
        """Return the same in the host's memory, after one copy from the device."""
        if self.tokens_b2.is_cpu:
            return self
        bits_b2 = self.logprobs_b2.view(torch.int32).to(torch.int64)
        flags_b2 = torch.stack((self.accepted_b, self.finite_b), dim=1).to(torch.int64)
        parts = (self.tokens_b2, bits_b2, flags_b2)
        copied = torch.cat(parts, dim=1).cpu().split([part.shape[1] for part in parts], dim=1)
        accepted_b, finite_b = copied[2].bool().unbind(1)
        return Sampled(copied[0], copied[1].to(torch.int32).view(torch.float32), accepted_b, finite_b)


def propose(
    logits_bv: Tensor, temperatures_b: Tensor, seeds_b: NDArray[np.uint64], positions_b: NDArray[np.int64]
) -> Draft:
    """Draw one draft per row from the draft head's logits, which are overwritten, for the position in `positions_b`."""
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
    top_ps_b: Tensor | None = None,
) -> Sampled:
    """Sample the token at each row's position and, if its draft is accepted, also the token at the next position.
    `logits_b2v` are the main head's logits for these two positions; they are overwritten."""
    rows, _, vocab = logits_b2v.shape
    twice = None if top_ps_b is None else top_ps_b.repeat_interleave(2)
    tempered = Tempered.of(logits_b2v.view(2 * rows, vocab), temperatures_b.repeat_interleave(2), twice)
    weights_b2v, totals_b2 = tempered.weights_bv.view(rows, 2, vocab), tempered.totals().view(rows, 2)
    first, ahead = weights_b2v[:, 0], weights_b2v[:, 1]
    numbers = (
        uniforms(seeds_b, positions_b, Stream.ACCEPT),
        uniforms(seeds_b, positions_b, Stream.TOKEN),
        uniforms(seeds_b, positions_b + 1, Stream.TOKEN),
    )
    deciding, spare, next_ = torch.stack(numbers).to(logits_b2v.device).unbind()
    accepted = _accepted(first, totals_b2[:, 0], draft, deciding)
    tokens = torch.stack((draft.tokens_b, draw(ahead, next_)), dim=1)
    if tempered.greedy_b is not None:
        best_b2 = weights_b2v.argmax(-1)
        greedy = tempered.greedy_b[::2]
        accepted = torch.where(greedy, draft.valid_b & (best_b2[:, 0] == draft.tokens_b), accepted)
        tokens = torch.where(greedy[:, None], best_b2, tokens)
        redraw = ~accepted & ~greedy
    else:
        redraw = ~accepted
    left = redraw.nonzero().squeeze(1)
    if left.numel():
        rest = _rest(first[left], totals_b2[left, 0], draft.probabilities_bv[left], draft.valid_b[left])
        tokens[left, 0] = draw(rest, spare[left])
    flat = logprobs(tempered.weights_bv, totals_b2.flatten(), tokens.flatten())
    # Without an accepted draft, the second column may come from padding.
    finite = torch.isfinite(totals_b2)
    return Sampled(tokens, flat.view(rows, 2), accepted, finite[:, 0] & (finite[:, 1] | ~accepted))


def _accepted(weights_bv: Tensor, totals_b: Tensor, draft: Draft, uniforms_b: Tensor) -> Tensor:
    drafted = draft.tokens_b[:, None]
    p = weights_bv.gather(1, drafted).squeeze(1) / totals_b
    q = draft.probabilities_bv.gather(1, drafted).squeeze(1)
    return draft.valid_b & (uniforms_b * q < p)


def _rest(weights_bv: Tensor, totals_b: Tensor, probabilities_bv: Tensor, valid_b: Tensor) -> Tensor:
    """Return the weights to draw a token with after its draft was rejected: max(p - q, 0), or p without a draft. p is
    the main head's distribution, q the draft head's (`probabilities_bv`)."""
    p = weights_bv / totals_b[:, None]
    rest = (p - torch.where(valid_b[:, None], probabilities_bv, 0.0)).clamp_(min=0)
    # If nothing is left, p and q differ only by rounding: a rejection is then almost impossible, and drawing from p is
    # right.
    empty = rest.sum(-1) == 0
    return torch.where(empty[:, None], p, rest) if bool(empty.any()) else rest
