"""Matmuls with rounded operands, expert by expert, and their gradients.

Invariant: each product is that of two operands as `Numerics` rounds them, summed in fp32, multiplied by the outer
scales, and rounded once. Rows of nobody are zero, so they change no scale.

For the backward pass x and W are kept as they were before rounding, which for W costs nothing and for x what bf16
costs: the gradients want other roundings, along other axes. Kernels may keep those in place of x; they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.placing import Gather, Spread, places
from etude.model.precision.numerics import Numerics, Operand
from etude.model.tiles import product, silu, weighted_sum

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
    x = cast(Tensor, Spread.apply(x_nd, place, cuts[-1], experts_nk.shape[1], True))
    gate, up = rounded_matmul(x, gate_up, cuts, numerics).chunk(2, -1)
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
        rows = F.pad(rows, (0, 0, 0, -count % numerics.block))
    return rounded_matmul(rows, weight, (0, rows.shape[0]), numerics)[:count].view(*x.shape[:-1], -1)


def rounded_matmul(x: Tensor, weights: Weights, cuts: Sequence[int], numerics: Numerics) -> Tensor:
    """x W^T, where expert e has the rows from cuts[e] to cuts[e + 1]: [R, K] -> [R, sum of M]."""
    if isinstance(weights, Operand):
        return _product(numerics.activations(x), weights, cuts, x.dtype, tiled=numerics.invariant)
    return cast(Tensor, _RoundedMatmul.apply(x, tuple(cuts), numerics, *weights))


class _RoundedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cuts: tuple[int, ...], numerics: Numerics, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.cuts, ctx.numerics = cuts, numerics
        operands = numerics.activations(x), numerics.weights(weights, x.dtype)
        return _product(*operands, cuts, x.dtype, tiled=numerics.invariant)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (x, *weights) = grads, ctx.saved_tensors
        cuts, numerics = ctx.cuts, ctx.numerics
        widths = [weight.shape[1] for weight in weights]
        dx = None
        if ctx.needs_input_grad[0]:
            # By weight, as the blocks of W are: an output's width need not be whole blocks.
            left = torch.cat([numerics.backward(part) for part in dy.split(widths, -1)], -1)
            right = torch.cat([numerics.transposed(weight) for weight in weights], -1)
            dx = _product(Operand(left), Operand(right), cuts, x.dtype)
        dws: tuple[Tensor | None, ...] = (None,) * len(weights)
        if any(ctx.needs_input_grad[3:]):
            dw = _over_rows(numerics.backward(dy.T), numerics.backward(x.T), cuts, weights[0].dtype)
            dws = dw.split(widths, 1)
        return dx, None, None, *dws


def _product(x: Operand, w: Operand, cuts: Sequence[int], dtype: torch.dtype, *, tiled: bool = False) -> Tensor:
    experts, rows = len(cuts) - 1, x.values.shape[0]
    if not tiled and cuts[1] * experts == rows and all(end - begin == cuts[1] for begin, end in pairwise(cuts)):
        y = torch.bmm(x.values.view(experts, cuts[1], -1), w.values.mT)
        if w.outer is not None:
            y *= w.outer
        y = y.flatten(0, 1)
    else:
        # One by one: grouped matmuls take no fp32 on a GPU, and are no faster on a CPU.
        y = x.values.new_empty(rows, w.values.shape[1])
        for expert, (begin, end) in enumerate(pairwise(cuts)):
            part = y[begin:end]
            if tiled:
                part.copy_(product(x.values[begin:end], w.values[expert]))
            else:
                torch.mm(x.values[begin:end], w.values[expert].T, out=part)
            if w.outer is not None:
                part *= w.outer[expert]
    if x.outer is not None:
        y *= x.outer
    return y.to(dtype)


def _over_rows(dy: Tensor, x: Tensor, cuts: Sequence[int], dtype: torch.dtype) -> Tensor:
    """dy [M, R], x [K, R] -> [E, M, K], contracted over the rows of each expert."""
    dw = dy.new_empty(len(cuts) - 1, dy.shape[0], x.shape[0])
    for expert, (begin, end) in enumerate(pairwise(cuts)):
        torch.mm(dy[:, begin:end], x[:, begin:end].T, out=dw[expert])
    return dw.to(dtype)
