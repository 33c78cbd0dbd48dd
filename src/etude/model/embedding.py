"""The token embedding, whose gradient is summed in fp32 over the occurrences of a token.

On a CPU torch sums it in the weights' dtype. In bf16 the sum stops growing after some 256 gradients of one sign.

An embedding that is also the output head adds its gradient to the head's, row by row. Else the sum of both would take
another two tensors of that size, and most rows of the embedding's are zeros.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, _Embedded.apply(tokens, self.weight))

    def with_head(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedded tokens, and the weight for an output head whose losses are differentiated together with
        them."""
        return cast(tuple[Tensor, Tensor], _EmbeddedWithHead.apply(tokens, self.weight))


class _Embedded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight_vh: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.vocabulary = len(weight_vh)
        return F.embedding(tokens, weight_vh)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (dy,), (tokens,) = grads, ctx.saved_tensors
        return None, _summed(dy, tokens, ctx.vocabulary).to(dy.dtype)


class _EmbeddedWithHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight_vh: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tokens)
        ctx.vocabulary = len(weight_vh)
        return F.embedding(tokens, weight_vh), weight_vh.view_as(weight_vh)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, Tensor | None]:
        (dy, dw), (tokens,) = grads, ctx.saved_tensors
        if dy is None:
            return None, dw
        if dw is None:
            return None, _summed(dy, tokens, ctx.vocabulary).to(dy.dtype)
        # In place: whatever multiplies by a head makes the weight's gradient afresh, and only for this.
        if dw.is_cpu and dw.dtype == torch.float32:
            return None, dw.index_add_(0, tokens.flatten(), dy.flatten(0, -2))
        return None, dw.add_(_summed(dy, tokens, ctx.vocabulary))


def _summed(dy: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """Return the embedding's gradient in fp32."""
    wide = torch.ops.aten.embedding_dense_backward(dy.to(torch.float32), tokens, vocabulary, -1, False)
    return cast(Tensor, wide)
