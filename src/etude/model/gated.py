"""The middle of a SwiGLU feed-forward, which keeps two tensors of its inner width for the backward pass, not four.

Autograd would keep gate, up, the activation, and the product that the last matmul reads. The latter two are computed
again from the former, by the same calls, so they have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

Pointwise = Callable[[Tensor], Tensor]


def gated(gate: Tensor, up: Tensor, activate: Pointwise, read: Callable[[Tensor], Tensor]) -> Tensor:
    """Return read(activate(gate) * up), where `activate` is SiLU."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # a compiler decides by itself what it keeps
        return read(activate(gate) * up)
    product = cast(Tensor, _Gated.apply(gate, up, activate))
    place, inputs = product.untyped_storage().data_ptr(), (gate.detach(), up.detach())

    def pack(kept: Tensor) -> Tensor | torch.Size:
        return kept.shape if kept.untyped_storage().data_ptr() == place and kept.is_contiguous() else kept

    def unpack(kept: Tensor | torch.Size) -> Tensor:
        return kept if isinstance(kept, Tensor) else activate(inputs[0]).mul_(inputs[1]).view(kept)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return read(product)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activate: Pointwise) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activate = activate
        return activate(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (dy,), (gate, up) = grads, ctx.saved_tensors
        to_gate, to_up, _ = ctx.needs_input_grad
        dgate = torch.ops.aten.silu_backward(dy * up, gate) if to_gate else None
        return dgate, ctx.activate(gate).mul_(dy) if to_up else None, None
