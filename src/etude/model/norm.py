"""Root-mean-square norm, always computed in fp32.

Its backward pass is written out: of a forward pass, only the input and one number per row are kept.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Normed.apply(x, self.weight, self.eps))


class _Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.float32)
        scale = wide.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        width, to_weight = x.shape[-1], weight.to(torch.float32)
        normed, dy = x.to(torch.float32) * scale, grads[0].to(torch.float32)
        slopes = dy * normed
        dweight = slopes.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, dweight, None
        along = slopes @ to_weight / -width
        dx = torch.addcmul(dy * to_weight, normed, along.unsqueeze(-1)).mul_(scale)
        return dx.to(x.dtype), dweight, None
