"""The token embedding, whose gradient is summed in fp32 over the occurrences of a token.

On a CPU torch sums it in the weights' dtype. In bf16 the sum stops growing after some 256 gradients of one sign.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, _Embedded.apply(tokens, self.weight))


class _Embedded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight_vh: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.vocabulary = len(weight_vh)
        return F.embedding(tokens, weight_vh)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (dy,), (tokens,) = grads, ctx.saved_tensors
        wide = torch.ops.aten.embedding_dense_backward(dy.to(torch.float32), tokens, ctx.vocabulary, -1, False)
        return None, wide.to(dy.dtype)
