"""Activation checkpointing: a layer's forward pass keeps its input alone, and the backward pass computes it again.

Both passes make the same calls on the same numbers, so losses and gradients have the same bits as without it. Memory
then grows with the width of the residual stream per layer, and besides with the activations of one layer.

Written here, because torch's own checkpoint function loads torch's compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Never, cast

import torch
from torch import Tensor, nn

Run = Callable[[Tensor], tuple[Tensor, ...]]
"""Computes a layer's differentiable results from its input. It must be the same function of the input in every call."""


def recomputed(run: Run, x: Tensor, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, ...]:
    """Return `run(x)`, with gradients for x and for those of the parameters that need one."""
    return cast(tuple[Tensor, ...], _Recomputed.apply(run, x, *(p for p in parameters if p.requires_grad)))


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, x: Tensor, *parameters: nn.Parameter) -> tuple[Tensor, ...]:
        ctx.run, ctx.parameters = run, parameters
        ctx.set_materialize_grads(False)  # an output that no loss reads has no gradient, instead of zeros
        ctx.save_for_backward(x)
        # With gradients enabled, since some functions choose another, equivalent computation without them.
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_forget, _never):
            return tuple(y.detach() for y in run(x.detach().requires_grad_(x.requires_grad)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (saved,) = ctx.saved_tensors
        x = saved.detach().requires_grad_(saved.requires_grad)
        with torch.enable_grad():
            outputs = ctx.run(x)
        read = [(y, dy) for y, dy in zip(outputs, grads, strict=True) if dy is not None]
        inputs = [*([x] if x.requires_grad else []), *ctx.parameters]
        found = iter(torch.autograd.grad([y for y, _ in read], inputs, [dy for _, dy in read], allow_unused=True))
        return None, next(found) if x.requires_grad else None, *found


def _forget(_: Tensor) -> None:
    """Keep nothing of a tensor that autograd would save."""


def _never(_: None) -> Never:
    raise AssertionError("the first pass of a recomputed layer was differentiated")
