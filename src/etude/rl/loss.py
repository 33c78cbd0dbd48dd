"""The policy-gradient loss of one microbatch.

Token losses are summed and divided by one constant per step, never by a sequence's own length. The importance ratio
between trainer and engine log-probs is truncated from above and not differentiated. A token whose probability has
already left the trust region (`trust.py`) in the direction its advantage pushes gets no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from etude.rl.trust import TrustRegion


@dataclass(slots=True)
class LossParts:
    loss: Tensor
    """The scalar to back-propagate: the sum of the token losses divided by the `constant` given to `policy_loss`."""
    delta: Tensor
    """Trainer minus engine log-prob of every sampled token of the microbatch, detached."""
    entropy: Tensor
    """Entropy of the trainer's distribution at every sampled token, detached."""
    capped: Tensor
    """Per sampled token, whether its importance ratio was truncated."""
    clipped: Tensor
    """Per sampled token, whether it had left the trust region in its advantage's direction: it has no gradient."""


def token_logprobs(logits_nv: Tensor, tokens_n: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the tokens' log-probs and the entropies of their distributions. Row i of `logits_nv` predicts token i."""
    logp_nv = torch.log_softmax(logits_nv if temperature == 1 else logits_nv / temperature, dim=-1)
    chosen_n = logp_nv.gather(1, tokens_n.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        entropy_n = -(logp_nv.exp() * logp_nv).sum(-1)
    return chosen_n, entropy_n


def policy_loss(
    logits_nv: Tensor,
    tokens_bt: Tensor,
    mask_bt: Tensor,
    engine_logprobs_bt: Tensor,
    advantages_b: Tensor,
    *,
    temperature: float,
    ratio_cap: float,
    trust: TrustRegion,
    constant: float,
) -> LossParts:
    """Return the loss of a microbatch. `logits_nv` predict the tokens that `mask_bt` marks, row by row."""
    predicted = mask_bt[:, 1:]
    logp_n, entropy_n = token_logprobs(logits_nv, tokens_bt[:, 1:][predicted], temperature)
    engine_n = engine_logprobs_bt[:, 1:][predicted]
    advantage_n = advantages_b.unsqueeze(1).expand_as(predicted)[predicted]
    delta_n = (logp_n - engine_n).detach()
    ratio_n = delta_n.exp()
    clipped_n = trust.left(delta_n, engine_n, advantage_n)
    weight_n = ratio_n.clamp(max=ratio_cap).masked_fill(clipped_n, 0.0)
    loss = -(weight_n * advantage_n * logp_n).sum() / constant
    return LossParts(loss, delta_n, entropy_n, ratio_n > ratio_cap, clipped_n)
