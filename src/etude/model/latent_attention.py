"""Multi-head latent attention, with the published parameter names.

Keys and values of all heads are linear in one latent per token, so only that latent and one rotary key are cached.
Training expands the latents to keys and values. With a cache the same function is computed in absorbed form: the
queries are projected into the latent space instead, and no key or value is ever built. In `invariant` mode, where a
row's result must not depend on its batch, training uses the absorbed form too (pieces.py), so that both give the same
bits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.model.attend import Mask, attend
from etude.model.attention import Attention, Context, Rotation
from etude.model.config import LATENT_NORM_EPS, ModelConfig
from etude.model.linear import Linear
from etude.model.norm import RMSNorm
from etude.model.pieces import Packed
from etude.model.rope import rotate
from etude.model.step import LayerStep
from etude.model.tiles import per_head


class LatentAttention(Attention):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d, heads = config.hidden_size, config.num_attention_heads
        queries = heads * config.qk_head_dim
        self.lora = config.q_lora_rank is not None
        if config.q_lora_rank is None:
            self.q_proj = Linear(d, queries)
        else:
            self.q_a_proj = Linear(d, config.q_lora_rank)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, LATENT_NORM_EPS)
            self.q_b_proj = Linear(config.q_lora_rank, queries)
        self.kv_a_proj_with_mqa = Linear(d, config.latent_width)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, LATENT_NORM_EPS)
        self.kv_b_proj = nn.Linear(
            config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim), bias=False
        )
        self.o_proj = Linear(heads * config.v_head_dim, d)

    def forward(self, x_btd: Tensor, rotation: Rotation, context: Context) -> Tensor:
        config = self.config
        heads = config.num_attention_heads
        q = self._queries(x_btd).unflatten(-1, (heads, -1))
        q_nope, q_rope = q.split([config.qk_nope_head_dim, config.qk_rope_head_dim], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x_btd).split([config.kv_lora_rank, config.qk_rope_head_dim], dim=-1)
        latent = self.kv_a_layernorm(latent)
        # Rotate the queries of all heads and the single key together.
        rotated = rotate(torch.cat((q_rope, k_rope.unsqueeze(2)), dim=2), rotation)
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
        q: Tensor = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_btd))) if self.lora else self.q_proj(x_btd)
        return q

    def _expanded(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, mask: Mask) -> Tensor:
        config = self.config
        kv = self.kv_b_proj(latent).unflatten(-1, (config.num_attention_heads, -1))
        k_nope, v = kv.split([config.qk_nope_head_dim, config.v_head_dim], dim=-1)
        q = torch.cat((q_nope, q_rope), dim=-1).transpose(1, 2)
        k = torch.cat((k_nope, k_rope.expand_as(q_rope)), dim=-1).transpose(1, 2)
        return attend(q, k, v.transpose(1, 2), mask, config.softmax_scale).transpose(1, 2).flatten(2)

    def _absorbed(self, q_nope: Tensor, q_rope: Tensor, latent_tw: Tensor, context: LayerStep | Packed) -> Tensor:
        """Attend in the latent space (absorbed form). Inputs are flat lists of tokens, [T, heads, ...]."""
        config = self.config
        up = self.kv_b_proj.weight.view(config.num_attention_heads, -1, config.kv_lora_rank)
        up_k, up_v = up.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        times = per_head if self.invariant else _per_head
        q_thw = torch.cat((times(q_nope, up_k.mT), q_rope), dim=-1)
        mixed_thw = context.attend(q_thw, latent_tw.unsqueeze(1), config.softmax_scale)
        # The rotary part of the mix is discarded: cheaper than copying the latents without it.
        return times(mixed_thw[..., : config.kv_lora_rank], up_v).flatten(1)


def _per_head(x_thk: Tensor, weight_hmk: Tensor) -> Tensor:
    return torch.bmm(x_thk.transpose(0, 1), weight_hmk.mT).transpose(0, 1)
