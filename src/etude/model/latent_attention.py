"""Multi-head latent attention, with the published parameter names.

Keys and values of all heads are linear in one latent per token, so only that latent and one rotary key are cached.
Training expands the latents to keys and values. With a cache the same function is computed in absorbed form: the
queries are projected into the latent space instead, and no key or value is ever built. In `invariant` mode, where a
row's result must not depend on its batch, training uses the absorbed form too (pieces.py), so that both give the same
bits.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from etude.model.attend import Mask, attend
from etude.model.attention import Attention, Context
from etude.model.config import LatentShape
from etude.model.linear import Expansion, Linear
from etude.model.norm import RMSNorm
from etude.model.pieces import Packed
from etude.model.rope import Rotation
from etude.model.step import LayerStep
from etude.model.tiles import per_head

NORM_EPS = 1e-6
"""Epsilon of the norms inside attention. The published code uses this value there and ignores rms_norm_eps."""


class LatentAttention(Attention):
    def __init__(self, shape: LatentShape, width: int, scale: float) -> None:
        """Build attention over a residual stream of `width`. `scale` is the factor of the attention scores."""
        super().__init__()
        self.shape, self.scale = shape, scale
        queries = shape.heads * shape.query
        if shape.q_rank is None:
            self.q_proj = Linear(width, queries)
        else:
            self.q_a_proj = Linear(width, shape.q_rank)
            self.q_a_layernorm = RMSNorm(shape.q_rank, NORM_EPS)
            self.q_b_proj = Linear(shape.q_rank, queries)
        self.kv_a_proj_with_mqa = Linear(width, shape.entry)
        self.kv_a_layernorm = RMSNorm(shape.kv_rank, NORM_EPS)
        self.kv_b_proj = Expansion(shape.kv_rank, shape.heads * (shape.nope + shape.value))
        self.o_proj = Linear(shape.heads * shape.value, width)

    def forward(self, x_btd: Tensor, rotation: Rotation, context: Context) -> Tensor:
        shape, heads = self.shape, self.shape.heads
        q = self._queries(x_btd).unflatten(-1, (heads, -1))
        q_nope, q_rope = q.split([shape.nope, shape.rope], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x_btd).split([shape.kv_rank, shape.rope], dim=-1)
        latent = self.kv_a_layernorm(latent)
        # Rotate the queries of all heads and the single key together.
        rotated = rotation(torch.cat((q_rope, k_rope.unsqueeze(2)), dim=2))
        q_rope, k_rope = rotated.split([heads, 1], dim=2)
        if isinstance(context, Mask):
            y = self._expanded(q_nope, q_rope, latent, k_rope, context)
        else:
            latent_tw = torch.cat((latent, k_rope.squeeze(2)), dim=-1).flatten(0, 1)
            y = self._absorbed(q_nope.flatten(0, 1), q_rope.flatten(0, 1), latent_tw, context)
            y = y.unflatten(0, x_btd.shape[:2])
        out: Tensor = self.o_proj(y)
        return out

    def _queries(self, x_btd: Tensor) -> Tensor:
        if self.shape.q_rank is None:
            return cast(Tensor, self.q_proj(x_btd))
        return cast(Tensor, self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_btd))))

    def _expanded(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, mask: Mask) -> Tensor:
        shape = self.shape
        kv = self.kv_b_proj(latent).unflatten(-1, (shape.heads, -1))
        k_nope, v = kv.split([shape.nope, shape.value], dim=-1)
        q = torch.cat((q_nope, q_rope), dim=-1).transpose(1, 2)
        k = torch.cat((k_nope, k_rope.expand_as(q_rope)), dim=-1).transpose(1, 2)
        return attend(q, k, v.transpose(1, 2), mask, self.scale).transpose(1, 2).flatten(2)

    def _absorbed(self, q_nope: Tensor, q_rope: Tensor, latent_tw: Tensor, context: LayerStep | Packed) -> Tensor:
        """Attend in the latent space (absorbed form). Inputs are flat lists of tokens, [T, heads, ...]."""
        shape = self.shape
        up = self.kv_b_proj.matrix().view(shape.heads, -1, shape.kv_rank)
        up_k, up_v = up.split([shape.nope, shape.value], dim=1)
        times = per_head if self.invariant else _per_head
        q_thw = torch.cat((times(q_nope, up_k.mT), q_rope), dim=-1)
        mixed_thw = context.attend(q_thw, latent_tw.unsqueeze(1), self.scale)
        # The rotary part of the mix is discarded: cheaper than copying the latents without it.
        return times(mixed_thw[..., : shape.kv_rank], up_v).flatten(1)


def _per_head(x_thk: Tensor, weight_hmk: Tensor) -> Tensor:
    return torch.bmm(x_thk.transpose(0, 1), weight_hmk.mT).transpose(0, 1)
