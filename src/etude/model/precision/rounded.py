"""Matmuls with rounded operands, expert by expert, and their gradients.

Invariant: every operand and every product comes from `Numerics`; here is which rows are whose. Rows of nobody are zero,
so they change no scale.

For the backward pass x and W are kept as they were before rounding, which for W costs nothing and for x what bf16
costs: the gradients want other roundings, along other axes. Kernels may keep those in place of x; they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.placing import Gather, Spread, places, tokens_of_rows
from etude.model.precision.numerics import Numerics, Operand
from etude.model.tiles import silu, weighted_sum

Weights = Sequence[Tensor] | Operand
"""[E, M, K] each, multiplied with one input; or what they were rounded to before, which has no gradient."""

ROWS_STEP = 32
"""Rows of an expert without gradients: matmuls should meet few shapes."""
EQUAL_MAX_PAIRS = 4096
"""Token-expert pairs up to which, without gradients, all experts get as many rows as the busiest: one batched matmul
is faster there than one for each."""


def rounded_experts(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate_up: Weights, down: Weights, numerics: Numerics
) -> Tensor:
    """sum over k of gates[n,k] * down[e] (silu(gate[e] x) * (up[e] x)) with e = experts[n,k], the matmuls rounded."""
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
    place = places(flat, count, ends - sizes)
    cuts = (0, *ends.tolist())
    choices = experts_nk.shape[1]
    if isinstance(gate_up, Operand):
        # Tokens are rounded once, not once for each of their experts.
        chosen = tokens_of_rows(place, cuts[-1], choices, nobody=x_nd.shape[0])
        hidden = numerics.product(numerics.activations(x_nd).rows(chosen), gate_up, cuts, x_nd.dtype)
    else:
        x = cast(Tensor, Spread.apply(x_nd, place, cuts[-1], choices, True))
        hidden = rounded_matmul(x, gate_up, cuts, numerics)
    gate, up = hidden.chunk(2, -1)
    activate = silu if numerics.invariant else F.silu
    y = rounded_matmul(activate(gate) * up, down, cuts, numerics)
    y = cast(Tensor, Gather.apply(y, place)).view(*experts_nk.shape, -1)
    if numerics.invariant:
        return weighted_sum(gates_nk, y)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def rounded_linear(x: Tensor, weight: Weights, numerics: Numerics) -> Tensor:
    """x W^T for one weight [1, M, K]: a single expert that every row goes to."""
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    if torch.is_grad_enabled():
        whole = max(1, -(-count // numerics.block)) * numerics.block  # of no rows there are no blocks to contract
        rows = F.pad(rows, (0, 0, 0, whole - count))
    y = rounded_matmul(rows, weight, (0, rows.shape[0]), numerics)[:count]
    return y.view(*x.shape[:-1], y.shape[-1])


def rounded_matmul(x: Tensor, weights: Weights, cuts: Sequence[int], numerics: Numerics) -> Tensor:
    """x W^T, where expert e has the rows from cuts[e] to cuts[e + 1]: [R, K] -> [R, sum of M]."""
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
