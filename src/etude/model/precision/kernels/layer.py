"""A layer of routed experts built from kernels, forward and backward.

The forward pass saves for the backward pass: x and the hidden activations, quantised along the tokens; gate and up
before SwiGLU; and the experts' results, which the gradients of the gates need. The gradient of x needs the transposed
weights, which the backward pass quantises anew from the plain weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.errors import KernelUnavailable
from etude.model.placing import Placement, place_pairs
from etude.model.precision.formats import split_tensors
from etude.model.precision.kernels.experts import ExpertKernels, KernelOperand


def experts_by_kernels(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, weights: Sequence[KernelOperand], kernels: ExpertKernels
) -> Tensor:
    """Compute sum over k of gates[n,k] * down[e] (silu(gate[e] x) * (up[e] x)) with e = experts[n,k].

    `weights` are gate, up and down, as plain tensors or as codes and scales; the latter get no gradient.
    """
    if x_nd.dtype != torch.bfloat16:
        raise KernelUnavailable(f"the experts' kernels take bfloat16, not {str(x_nd.dtype).removeprefix('torch.')}")
    if not x_nd.shape[0]:
        return torch.zeros_like(x_nd)
    first = weights[0]
    trained = isinstance(first, Tensor) and torch.is_grad_enabled()
    count = (first if isinstance(first, Tensor) else first.codes).shape[0]
    placement = place_pairs(experts_nk, count, multiple=kernels.block if trained else 1)
    if trained:
        return cast(Tensor, _Layer.apply(x_nd, gates_nk, placement, kernels, *weights))
    gate, up, down = (kernels.weight(weight) for weight in weights)
    ends = placement.ends_e
    x = kernels.rows(kernels.permute(x_nd, placement))
    hidden = kernels.swiglu(kernels.multiply(x, gate, ends), kernels.multiply(x, up, ends))
    return kernels.unpermute(kernels.multiply(hidden, down, ends), placement, gates_nk)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_nd: Tensor, gates_nk: Tensor, placement: Placement, kernels: ExpertKernels, *weights: Tensor
    ) -> Tensor:
        ends = placement.ends_e
        rows, columns = kernels.rows_and_columns(kernels.permute(x_nd, placement))
        gate, up = (kernels.multiply(rows, kernels.weight(weight), ends) for weight in weights[:2])
        hidden, hidden_columns = kernels.swiglu_and_columns(gate, up)
        y = kernels.multiply(hidden, kernels.weight(weights[2]), ends)
        ctx.placement, ctx.kernels = placement, kernels
        _keep(ctx, gates_nk, *weights, gate, up, y, columns, hidden_columns)
        return kernels.unpermute(y, placement, gates_nk)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        placement, kernels = ctx.placement, ctx.kernels
        gates_nk, gate_weight, up_weight, down_weight, gate, up, y, columns, hidden_columns = _kept(ctx)
        ends = placement.ends_e
        dy, dy_columns = kernels.rows_and_columns(kernels.permute(grads[0], placement, gates_nk))
        dhidden = kernels.multiply(dy, kernels.transposed(down_weight), ends)
        dgate = torch.ops.aten.silu_backward(dhidden * up, gate)
        (dgate, dgate_columns), (dup, dup_columns) = map(kernels.rows_and_columns, (dgate, dhidden * F.silu(gate)))
        dx = kernels.multiply(dgate, kernels.transposed(gate_weight), ends)
        dx += kernels.multiply(dup, kernels.transposed(up_weight), ends)
        return (
            kernels.unpermute(dx, placement),
            kernels.gate_gradients(grads[0], y, placement).to(gates_nk.dtype),
            None,
            None,
            kernels.weight_gradient(dgate_columns, columns, ends),
            kernels.weight_gradient(dup_columns, columns, ends),
            kernels.weight_gradient(dy_columns, hidden_columns, ends),
        )


def _keep(ctx: Any, *sides: KernelOperand) -> None:
    """Save operands with `save_for_backward`, so that autograd frees them once the gradients are computed. Quantised
    operands are saved as codes and scales, because it takes plain tensors only; `ctx.made` says how to rebuild them."""
    tensors: list[Tensor] = []
    ctx.made = []
    for side in sides:
        parts, rebuild = ({"x": side}, lambda x: x) if isinstance(side, Tensor) else split_tensors(side)
        tensors += parts.values()
        ctx.made.append((list(parts), rebuild))
    ctx.save_for_backward(*tensors)


def _kept(ctx: Any) -> list[Any]:
    left = iter(ctx.saved_tensors)
    return [rebuild(**dict(zip(names, islice(left, len(names)), strict=True))) for names, rebuild in ctx.made]
