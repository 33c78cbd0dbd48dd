"""One transformer layer: attention, then a dense feed-forward or a mixture of experts, under published names."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.attention import Attention, Context
from etude.model.config import LatentShape, MixtureShape, ModelConfig
from etude.model.experts import expert_matmul
from etude.model.gated import gated
from etude.model.grouped_attention import GroupedAttention
from etude.model.latent_attention import LatentAttention
from etude.model.linear import Linear
from etude.model.lora import ExpertAdapters
from etude.model.norm import RMSNorm
from etude.model.precision.kernels import ExpertKernels
from etude.model.precision.numerics import Numerics
from etude.model.recompute import recomputed
from etude.model.rope import Rotation
from etude.model.router import Replay, Router, Routing
from etude.model.tiles import silu


class FeedForward(nn.Module):
    """SwiGLU feed-forward: down(silu(gate x) * up x)."""

    invariant = False
    """Whether to compute batch-invariantly: the result of a token then does not depend on the rest of its batch."""

    def __init__(self, width: int, inner: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner, bias)
        self.up_proj = Linear(width, inner, bias)
        self.down_proj = Linear(inner, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return gated(self.gate_proj(x), self.up_proj(x), silu if self.invariant else F.silu, self.down_proj)


class Experts(nn.Module):
    """The routed experts of one layer, stacked along the first axis; checkpoints store them one by one."""

    numerics: Numerics | None = None
    """Emulated rounding of the matmuls; None computes them in the weights' dtype."""
    invariant = False
    """Whether to compute batch-invariantly: the result of a token then does not depend on the rest of its batch."""
    kernels: ExpertKernels | None = None
    """Low-precision kernels that compute the layer; None computes it in plain torch."""

    def __init__(self, shape: MixtureShape, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(shape.experts, shape.width, width))
        self.up_proj = nn.Parameter(torch.empty(shape.experts, shape.width, width))
        self.down_proj = nn.Parameter(torch.empty(shape.experts, width, shape.width))
        self.lora: ExpertAdapters | None = None

    def forward(self, x_nd: Tensor, routing: Routing) -> Tensor:
        weights = (self.gate_proj, self.up_proj, self.down_proj)
        how = (self.numerics, self.invariant, self.kernels)
        return expert_matmul(x_nd, routing.experts_nk, routing.gates_nk, *weights, *how, lora=self.lora)


class MixtureOfExperts(nn.Module):
    """Router, routed experts and, if the shape has them, shared experts that every token passes through."""

    def __init__(self, shape: MixtureShape, width: int) -> None:
        super().__init__()
        self.gate = Router(shape, width)
        self.experts: nn.Module = Experts(shape, width)
        self.shared_experts = FeedForward(width, shape.shared_width) if shape.shared_width else None

    def forward(
        self, x_btd: Tensor, replay: Replay | None = None, replayed_btk: Tensor | None = None
    ) -> tuple[Tensor, Routing]:
        x_nd = x_btd.flatten(0, 1)
        routing: Routing = self.gate(x_nd, replay, None if replayed_btk is None else replayed_btk.flatten(0, 1))
        y = cast(Tensor, self.experts(x_nd, routing)).view_as(x_btd)
        return (y if self.shared_experts is None else y + self.shared_experts(x_btd)), routing


def attention_of(config: ModelConfig) -> Attention:
    shape, width, scale = config.attention, config.hidden_size, config.softmax_scale
    if isinstance(shape, LatentShape):
        return LatentAttention(shape, width, scale)
    return GroupedAttention(shape, width, scale, config.rms_norm_eps)


class Block(nn.Module):
    checkpointed = False
    """Whether the backward pass computes this layer's activations again, instead of keeping them (recompute.py)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        mixture = config.mixture_of(layer)
        self.moe = mixture is not None
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = attention_of(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp: nn.Module = (
            FeedForward(config.hidden_size, config.intermediate_size, config.mlp_bias)
            if mixture is None
            else MixtureOfExperts(mixture, config.hidden_size)
        )

    def forward(
        self,
        x_btd: Tensor,
        rotation: Rotation,
        context: Context,
        replay: Replay | None = None,
        replayed_btk: Tensor | None = None,
    ) -> tuple[Tensor, Routing | None]:
        """Return the residual stream after this layer, and its routing (None in a dense layer)."""
        if not (self.checkpointed and torch.is_grad_enabled()):
            return self._layer(x_btd, rotation, context, replay, replayed_btk)
        routings: list[Routing | None] = []

        def run(x: Tensor) -> tuple[Tensor, ...]:
            y, routing = self._layer(x, rotation, context, replay, replayed_btk)
            routings.append(routing)
            scores_ne = None if routing is None else routing.scores_ne
            return (y,) if scores_ne is None else (y, scores_ne)

        y, *scores = recomputed(run, x_btd, list(self.parameters()))
        routing = routings.pop()
        return y, None if routing is None else _without_graph(routing, *scores)

    def _layer(
        self,
        x_btd: Tensor,
        rotation: Rotation,
        context: Context,
        replay: Replay | None,
        replayed_btk: Tensor | None,
    ) -> tuple[Tensor, Routing | None]:
        x_btd = x_btd + self.self_attn(self.input_layernorm(x_btd), rotation, context)
        inner = self.post_attention_layernorm(x_btd)
        if not self.moe:
            return x_btd + self.mlp(inner), None
        y, routing = self.mlp(inner, replay, replayed_btk)
        return x_btd + y, routing


def _without_graph(routing: Routing, scores_ne: Tensor | None = None) -> Routing:
    """Return the routing of a recomputed layer: only its scores have a gradient, that of the layer as a whole."""
    return replace(routing, gates_nk=routing.gates_nk.detach(), scores_ne=scores_ne)
