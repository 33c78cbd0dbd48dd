"""The router chooses each token's experts and their gates (weights).

Scores are sigmoids or a softmax of the router's logits. A bias per expert, where a network has it, affects only the
choice of experts; `balance` changes it, gradients do not. This balances the experts' load without an auxiliary loss.
The gates are the scores of the chosen experts without the bias, normalised or not.

Router replay, for training on tokens that an engine sampled: the engine's recorded experts replace the router's choice.
Scores are recomputed, so that the router gets gradients. In mode "filter", a replayed expert whose score is below
`threshold` times the lowest score among the router's own choice is replaced by the best expert that the token does not
use yet. With a threshold up to 1, an expert that the router itself would choose is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.config import MixtureShape, ModelConfig
from etude.model.errors import ModelError, ReplayMismatch
from etude.model.tiles import linear, sigmoid, softmax

UNKNOWN = 0xFFFF
"""Replayed expert id that means "not recorded", because the engine's network never processed the position. The router
then chooses the experts itself. Equals the trace's UNKNOWN_EXPERT, which is not imported because this package must run
with torch alone (`make gpu`)."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Expert choices that an engine recorded for the same tokens, to be used instead of the routers' own."""

    experts_btlk: Tensor
    """Ids of the recorded experts: [B, T, MoE layers, top k], any integer type."""
    mode: Literal["on", "filter"] = "filter"
    """Which recorded experts are used: all ("on"), or only those that score high enough ("filter")."""
    threshold: float = 0.5
    """Mode "filter" uses a recorded expert only if its score is at least this share of the lowest score in the router's
    own choice."""

    def checked(self, config: ModelConfig, batch: int, length: int) -> Replay:
        """Return this replay with int64 experts. Raises ReplayMismatch if they do not fit the network or the batch."""
        expected = (batch, length, config.moe_layers, config.num_experts_per_tok)
        if tuple(self.experts_btlk.shape) != expected:
            raise ReplayMismatch(f"replayed experts have shape {tuple(self.experts_btlk.shape)}, expected {expected}")
        experts = self.experts_btlk.to(torch.int64)
        known = (experts != UNKNOWN).all(-1, keepdim=True).expand_as(experts)
        inside = (experts >= 0) & (experts < config.n_routed_experts)
        ordered = experts.sort(-1).values
        repeated = (ordered[..., 1:] == ordered[..., :-1]) & known[..., 1:]
        if bool((known & ~inside).any()) or bool(repeated.any()):
            raise ReplayMismatch(
                f"replayed experts must be {config.num_experts_per_tok} distinct ids below {config.n_routed_experts}"
            )
        return Replay(experts, self.mode, self.threshold)


@dataclass(frozen=True, slots=True)
class Routing:
    experts_nk: Tensor
    gates_nk: Tensor
    overridden_n: Tensor | None = None
    """Whether replay made a token use an expert that this router would not have chosen; None without replay."""
    refused_n: Tensor | None = None
    """Whether mode "filter" replaced one of a token's recorded experts; None without replay."""
    scores_ne: Tensor | None = None
    """Scores of all experts, for `balance_loss`; kept only if gradients are."""


class Router(nn.Module):
    """The router of one layer, with the published parameter names."""

    e_score_correction_bias: Tensor | None
    invariant = False

    def __init__(self, shape: MixtureShape, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.experts, width))
        bias_e = torch.zeros(shape.experts, dtype=torch.float32) if shape.selection_bias else None
        self.register_buffer("e_score_correction_bias", bias_e)

    def forward(self, x_nd: Tensor, replay: Replay | None = None, replayed_nk: Tensor | None = None) -> Routing:
        scores_ne = self._scores(x_nd.to(torch.float32), self.weight.to(torch.float32))
        bias_e = self.e_score_correction_bias
        choice_ne = self._candidates(scores_ne.detach() if bias_e is None else scores_ne.detach() + bias_e)
        own_nk = choice_ne.topk(self.shape.per_token, dim=-1).indices
        if replay is None or replayed_nk is None:
            kept_ne = scores_ne if torch.is_grad_enabled() else None
            return Routing(own_nk, self._gates(scores_ne, own_nk), scores_ne=kept_ne)
        experts_nk, overridden_n, refused_n = _merge(scores_ne.detach(), choice_ne, own_nk, replay, replayed_nk)
        return Routing(experts_nk, self._gates(scores_ne, experts_nk), overridden_n, refused_n)

    @torch.no_grad()
    def balance(self, load_e: Tensor, rate: float) -> None:
        """Change each expert's bias by `rate`: up if the expert's load is below the mean, down if it is above."""
        if self.e_score_correction_bias is None:
            raise ModelError("this router has no bias per expert that could balance the load")
        load = load_e.to(self.e_score_correction_bias)
        self.e_score_correction_bias += rate * torch.sign(load.mean() - load)

    def _scores(self, x_nd: Tensor, weight_ed: Tensor) -> Tensor:
        logits_ne = linear(x_nd, weight_ed) if self.invariant else F.linear(x_nd, weight_ed)
        if self.shape.scoring == "softmax":
            return softmax(logits_ne) if self.invariant else logits_ne.softmax(-1)
        return sigmoid(logits_ne) if self.invariant else logits_ne.sigmoid()

    def _candidates(self, choice_ne: Tensor) -> Tensor:
        """Set experts outside the best groups to -inf. A group's score is the sum of its two best experts' scores."""
        groups, kept = self.shape.groups, self.shape.kept_groups
        if kept == groups:
            return choice_ne
        grouped = choice_ne.unflatten(-1, (groups, -1))
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(kept, dim=-1).indices
        allowed = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=choice_ne.device).scatter_(1, best, True)
        limited: Tensor = grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
        return limited

    def _gates(self, scores_ne: Tensor, experts_nk: Tensor) -> Tensor:
        chosen = scores_ne.gather(1, experts_nk)
        if self.shape.normalise:
            chosen = chosen / (chosen.sum(-1, keepdim=True) + 1e-20)
        return chosen * self.shape.scale

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        """Move or cast the module, but keep the bias in fp32: bf16 cannot represent the small steps of `balance`."""
        bias = self.e_score_correction_bias
        super()._apply(fn, recurse)
        moved = self.e_score_correction_bias
        if bias is not None and moved is not None and moved.dtype != torch.float32 and not bias.is_meta:
            self.e_score_correction_bias = bias.to(moved.device)
        return self


def balance_loss(routings: Sequence[Routing], load_le: Tensor, counted_n: Tensor | None) -> Tensor:
    """Return the auxiliary loss that evens the load of experts, as published: the number of experts times the sum over
    experts of load and mean score, both per token and taken over all layers together. It is the number of experts per
    token if the load is even. `counted_n` marks the tokens that count; None counts all."""
    scores = [r.scores_ne if counted_n is None else r.scores_ne[counted_n] for r in routings if r.scores_ne is not None]
    if len(scores) != len(load_le) or not scores:
        raise ModelError("the balance loss needs routers, a pass with gradients, and no replay")
    tokens = sum(len(scores_ne) for scores_ne in scores)
    mean_e = torch.stack([scores_ne.sum(0) for scores_ne in scores]).sum(0) / tokens
    loss: Tensor = load_le.shape[1] * (load_le.sum(0) / tokens * mean_e).sum()
    return loss


def _merge(
    scores_ne: Tensor, choice_ne: Tensor, own_nk: Tensor, replay: Replay, replayed_nk: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the experts to use, and per token whether it uses a replayed expert that the router would not have chosen,
    and whether mode "filter" replaced one of its replayed experts."""
    known_n1 = (replayed_nk != UNKNOWN).all(-1, keepdim=True)
    wanted_nk = torch.where(known_n1, replayed_nk, own_nk)
    in_own_ne = torch.zeros_like(choice_ne, dtype=torch.bool).scatter_(1, own_nk, True)
    if replay.mode == "on":
        refused_nk = torch.zeros_like(wanted_nk, dtype=torch.bool)
    else:
        weakest_n1 = scores_ne.gather(1, own_nk).amin(-1, keepdim=True)
        refused_nk = scores_ne.gather(1, wanted_nk) < replay.threshold * weakest_n1
    overridden_n = (~in_own_ne.gather(1, wanted_nk) & ~refused_nk).any(-1)
    if replay.mode == "filter":
        # The i-th refused expert of a token is replaced by the i-th best candidate that the token does not use yet.
        kept_ne = torch.zeros_like(choice_ne).scatter_add_(1, wanted_nk, (~refused_nk).to(choice_ne.dtype))
        spare_nk = choice_ne.masked_fill(kept_ne > 0, float("-inf")).topk(own_nk.shape[1], dim=-1).indices
        turn_nk = (refused_nk.cumsum(-1) - 1).clamp(min=0)
        wanted_nk = torch.where(refused_nk, spare_nk.gather(1, turn_nk), wanted_nk)
    return wanted_nk, overridden_n, refused_nk.any(-1)
