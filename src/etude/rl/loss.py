"""The policy-gradient loss of one microbatch.

Token losses are summed and divided by one constant per step, never by a sequence's own length. The importance ratio
between trainer and engine log-probs is truncated from above and not differentiated. A token whose probability has
already left the trust region (`trust.py`) in the direction its advantage pushes gets no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model import Head
from etude.model.head_losses import head_loss, slope_of_chosen, tempered
from etude.rl.forward import SampledTokens
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


def policy_loss(
    hidden_nh: Tensor,
    head: Head,
    sampled: SampledTokens,
    *,
    temperature: float,
    ratio_cap: float,
    trust: TrustRegion,
    constant: float,
) -> LossParts:
    """Return the loss of a microbatch. `hidden_nh` are the hidden states that predict the sampled tokens. Their logits
    exist for one chunk of tokens at a time."""
    tokens_n, engine_n, advantage_n = sampled.tokens_n, sampled.engine_n, sampled.advantages_n
    delta_n, entropy_n = torch.empty_like(engine_n), torch.empty_like(engine_n)
    capped_n, clipped_n = (torch.empty_like(tokens_n, dtype=torch.bool) for _ in range(2))

    def objective(logits_mv: Tensor, part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logs_mv = torch.log_softmax(tempered(logits_mv, temperature), dim=-1)
        chosen = tokens_n[part].unsqueeze(1)
        logp_m, probabilities_mv = logs_mv.gather(1, chosen).squeeze(1), torch.exp(logs_mv, out=logits_mv)
        entropy_n[part] = -logs_mv.mul_(probabilities_mv).sum(-1)
        delta_m = delta_n[part] = logp_m - engine_n[part]
        ratio_m = delta_m.exp()
        left_m = clipped_n[part] = trust.left(delta_m, engine_n[part], advantage_n[part])
        capped_n[part] = ratio_m > ratio_cap
        weight_m = ratio_m.clamp(max=ratio_cap).masked_fill(left_m, 0.0) * advantage_n[part] / constant
        slope_mv = slope_of_chosen(probabilities_mv, chosen)
        return -(weight_m * logp_m).sum(), slope_mv, (weight_m / temperature).unsqueeze(1)

    positions = torch.arange(len(tokens_n), device=tokens_n.device)
    loss = head_loss(hidden_nh, head, positions, objective)
    return LossParts(loss, delta_n, entropy_n, capped_n, clipped_n)
