"""Grouped-query attention, with the published parameter names.

The cache holds each group's key and value. With a cache, without one, and in `invariant` mode the same products are
computed, so that only the order of additions differs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.model.attend import Mask, attend
from etude.model.attention import Attention, Context
from etude.model.config import GroupedShape
from etude.model.linear import Linear
from etude.model.norm import RMSNorm
from etude.model.rope import Rotation


class GroupedAttention(Attention):
    def __init__(self, shape: GroupedShape, width: int, scale: float, eps: float) -> None:
        """Build attention over a residual stream of `width`. `scale` is the factor of the attention scores, `eps` the
        epsilon of the norms of queries and keys."""
        super().__init__()
        self.shape, self.scale = shape, scale
        self.q_proj = Linear(width, shape.heads * shape.head, bias="q" in shape.biases)
        self.k_proj = Linear(width, shape.groups * shape.head, bias="k" in shape.biases)
        self.v_proj = Linear(width, shape.groups * shape.head, bias="v" in shape.biases)
        self.o_proj = Linear(shape.heads * shape.head, width, bias="o" in shape.biases)
        self.q_norm = RMSNorm(shape.head, eps) if shape.qk_norm else None
        self.k_norm = RMSNorm(shape.head, eps) if shape.qk_norm else None

    def forward(self, x_btd: Tensor, rotation: Rotation, context: Context) -> Tensor:
        shape = self.shape
        q, k, v = (proj(x_btd).unflatten(-1, (-1, shape.head)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        # Rotate queries and keys together.
        q, k = rotation(torch.cat((q, k), dim=2)).split([shape.heads, shape.groups], dim=2)
        if isinstance(context, Mask):
            y = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), context, self.scale).transpose(1, 2)
        else:
            entries_tgw = torch.cat((k, v), dim=-1).flatten(0, 1)
            y = context.attend(q.flatten(0, 1), entries_tgw, self.scale, values_from=shape.head)
            y = y.unflatten(0, x_btd.shape[:2])
        out: Tensor = self.o_proj(y.flatten(2))
        return out
