"""Emulated low-precision matmuls of routed experts and linear layers, and their gradients.

Invariant: `Numerics` rounds every operand and computes every product; this file assigns rows to experts. Unused rows
are zero, so that they do not change any scale.

The forward pass saves x and W unrounded, because the backward pass quantises them along other axes. This takes as much
memory as training without rounding. Kernels may instead save x already quantised along the backward pass's axis; the
results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.placing import Gather, Spread, pair_rows, tokens_of_rows
from etude.model.precision.numerics import Numerics, Operand
from etude.model.tiles import silu, weighted_sum

Weights = Sequence[Tensor] | Operand
"""Tensors [E, M, K] that are multiplied with the same input, or one rounded operand, which gets no gradient."""

ROWS_STEP = 32
"""Multiple to which each expert's rows are padded in inference, so that few matmul shapes occur."""
EQUAL_MAX_PAIRS = 4096
"""Maximum number of token-expert pairs for which inference gives every expert as many rows as the busiest one has: one
batched matmul is then faster than one matmul per expert."""


def rounded_experts(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate_up: Weights, down: Weights, numerics: Numerics
) -> Tensor:
    """Compute sum over k of gates[n,k] * down[e] (silu(gate[e] x) * (up[e] x)), e = experts[n,k]."""
    if not x_nd.shape[0]:
        return torch.zeros_like(x_nd)
    experts = (gate_up.values if isinstance(gate_up, Operand) else gate_up[0]).shape[0]
    flat = experts_nk.flatten()
    count = torch.bincount(flat, minlength=experts)
    step = numerics.block if torch.is_grad_enabled() else ROWS_STEP
    sizes = (count + (step - 1)) // step * step
    if not torch.is_grad_enabled() and flat.numel() <= EQUAL_MAX_PAIRS:
        sizes = sizes.max().expand(experts)
    ends = sizes.cumsum(0)
    row_of_pair = pair_rows(flat, count, ends - sizes)
    cuts = (0, *ends.tolist())
    choices = experts_nk.shape[1]
    if isinstance(gate_up, Operand):
        # Each token is rounded once here, not once for each of its experts.
        chosen = tokens_of_rows(row_of_pair, cuts[-1], choices, nobody=x_nd.shape[0])
        hidden = numerics.product(numerics.activations(x_nd).rows(chosen), gate_up, cuts, x_nd.dtype)
    else:
        x = cast(Tensor, Spread.apply(x_nd, row_of_pair, cuts[-1], choices, True))
        hidden = rounded_matmul(x, gate_up, cuts, numerics)
    gate, up = hidden.chunk(2, -1)
    activate = silu if numerics.invariant else F.silu
    y = rounded_matmul(activate(gate) * up, down, cuts, numerics)
    y = cast(Tensor, Gather.apply(y, row_of_pair)).view(*experts_nk.shape, -1)
    if numerics.invariant:
        return weighted_sum(gates_nk, y)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def rounded_linear(x: Tensor, weight: Weights, numerics: Numerics) -> Tensor:
    """Compute x W^T with a weight [1, M, K], rounded like a single expert that gets every row."""
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    if torch.is_grad_enabled():
        whole = max(1, -(-count // numerics.block)) * numerics.block  # at least one block, even without rows
        rows = F.pad(rows, (0, 0, 0, whole - count))
    y = rounded_matmul(rows, weight, (0, rows.shape[0]), numerics)[:count]
    return y.view(*x.shape[:-1], y.shape[-1])


def rounded_matmul(x: Tensor, weights: Weights, cuts: Sequence[int], numerics: Numerics) -> Tensor:
    """Compute x W^T with gradients: [R, K] -> [R, sum of M]. Expert e has the rows from cuts[e] to cuts[e + 1] of x."""
    if isinstance(weights, Operand):
        return numerics.product(numerics.activations(x), weights, cuts, x.dtype)
    return cast(Tensor, _RoundedMatmul.apply(x, tuple(cuts), numerics, *weights))


class _RoundedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cuts: tuple[int, ...], numerics: Numerics, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.cuts, ctx.numerics = cuts, numerics
        return numerics.product(numerics.activations(x), numerics.weights(weights, x.dtype), cuts, x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (x, *weights) = grads, ctx.saved_tensors
        dx = ctx.numerics.input_gradient(dy, weights, ctx.cuts) if ctx.needs_input_grad[0] else None
        dws: tuple[Tensor | None, ...] = (None,) * len(weights)
        if any(ctx.needs_input_grad[3:]):
            dws = ctx.numerics.weight_gradient(dy, x, ctx.cuts).split([weight.shape[1] for weight in weights], 1)
        return dx, None, None, *dws
