"""The output head: logits in fp32 from hidden states in the compute dtype.

The product is not rounded to bf16 on its way to fp32. With logits that deviate by 4, rounding would move log-probs by
0.017 nats on average, as much as all else in which trainer and engine differ. Gradients are ordinary matmuls in the
compute dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.tiles import linear, product, tiled


@dataclass(frozen=True, slots=True)
class Head:
    weight_vh: Tensor
    invariant: bool = False
    """Whether to multiply in tiles of fixed size, so that a row's logits do not depend on the other rows."""
    wide_vh: Tensor | None = None
    """The weight in fp32, kept where many products follow one another; None widens it in every product."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute fp32 logits, with gradients."""
        if hidden.dtype in (torch.bfloat16, torch.float16):
            flat = cast(Tensor, _Product.apply(hidden.reshape(-1, hidden.shape[-1]), self.weight_vh, self))
            return flat.view(*hidden.shape[:-1], len(self.weight_vh))
        found = linear(hidden, self.weight_vh) if self.invariant else F.linear(hidden, self.weight_vh)
        return found.to(torch.float32)

    def product(self, hidden_nh: Tensor, room: Tensor | None = None) -> Tensor:
        """Compute fp32 logits [n, V] without a gradient. `room` is memory for them, [n or more, V], which need not be
        used."""
        if self._multiplies_wide:
            x = hidden_nh.to(torch.float32)
            weight = self.weight_vh.to(torch.float32) if self.wide_vh is None else self.wide_vh
            if self.invariant:
                return tiled(x, weight)
            return torch.mm(x, weight.T, out=None if room is None else room[: len(x)])
        return torch.mm(hidden_nh, self.weight_vh.T, out_dtype=torch.float32)

    def widened(self) -> Head:
        """Return the head with its weight in fp32 beside it, if `product` reads that."""
        if not self._multiplies_wide or self.wide_vh is not None:
            return self
        return replace(self, wide_vh=self.weight_vh.detach().to(torch.float32))

    @property
    def _multiplies_wide(self) -> bool:
        """Whether operands are converted to fp32 first: CPU matmuls have no fp32 result for bf16 operands."""
        return self.invariant or not self.weight_vh.is_cuda or self.weight_vh.dtype == torch.float32


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, head: Head) -> Tensor:
        ctx.save_for_backward(x, weight)
        return head.product(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        dy = grads[0].to(x.dtype)
        dx, dw, _ = ctx.needs_input_grad
        return product(dy, weight) if dx else None, product(dy.T, x) if dw else None, None
