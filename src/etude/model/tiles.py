"""Batch-invariant arithmetic: a row's result depends only on the row, not on the number of rows or its position.

Matmul libraries choose kernels, and with them the order of summation, by the number of rows. So here every matmul
repeats one call on operands of one shape: rows are cut into tiles, and the last tile is padded with zeros. Two
assumptions about the library are tested: the same call gives the same bits, and all rows (or matrices) of one call are
computed in the same way. SiLU, sigmoid and softmax are computed from `exp`, which treats every element in the same way;
torch's own functions use another routine for the remainder at the end of a tensor.

Gradients use ordinary matmuls, because the gradient of a batch is a sum over its rows anyway.

On a CPU without bf16 arithmetic, bf16 matmuls are computed in fp32 and rounded once: the same result except for the
order of summation, and several times as fast as torch's own path for this case (docs/log/model.md).
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor

ROWS = 64
"""Number of rows in a tile, the block of rows that one matmul call computes, in all dtypes but bf16."""
ROWS_BF16 = 128
"""Number of rows in a tile in bf16. Smaller tiles are no faster: a call's overhead exceeds its arithmetic."""


def tile_rows(dtype: torch.dtype) -> int:
    return ROWS_BF16 if dtype == torch.bfloat16 else ROWS


def as_multiplied(x: Tensor) -> Tensor:
    """Convert a matmul operand to the dtype it is multiplied in: fp32 for bf16 on a CPU without bf16 arithmetic."""
    return x.to(torch.float32) if x.dtype == torch.bfloat16 and x.is_cpu and not _has_bf16() else x


@functools.cache
def _has_bf16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply two matrices, or two equally long batches of matrices, without a gradient."""
    return (as_multiplied(left) @ as_multiplied(right)).to(left.dtype)


def linear(x: Tensor, weight_mk: Tensor) -> Tensor:
    """Compute x W^T tile by tile, with gradients."""
    y = cast(Tensor, _Linear.apply(x.reshape(-1, x.shape[-1]), weight_mk))
    return y.view(*x.shape[:-1], len(weight_mk))


def per_head(x_thk: Tensor, weight_hmk: Tensor) -> Tensor:
    """Multiply each head by its matrix, tile by tile: [T, heads, K] -> [T, heads, M]."""
    heads, rows = x_thk.shape[1], tile_rows(x_thk.dtype)
    x = filled(x_thk, rows).view(-1, rows, heads, x_thk.shape[-1]).transpose(1, 2)
    return grouped(x, weight_hmk).transpose(1, 2).flatten(0, 1)[: len(x_thk)]


def grouped(x_ngrk: Tensor, weight_gmk: Tensor) -> Tensor:
    """Multiply each group's rows by the group's matrix: [n, G, tile, K] -> [n, G, tile, M], with n calls."""
    return cast(Tensor, _Grouped.apply(x_ngrk.contiguous(), weight_gmk))


def silu(x: Tensor) -> Tensor:
    return cast(Tensor, _Silu.apply(x))


def sigmoid(x: Tensor) -> Tensor:
    return cast(Tensor, _Sigmoid.apply(x))


def softmax(x: Tensor) -> Tensor:
    """Compute the softmax over the last axis."""
    weights = (x - x.detach().amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def weighted_sum(weights_nk: Tensor, y_nkd: Tensor) -> Tensor:
    """Return the weighted sum of y over k, added in fp32 in the order of k."""
    total = y_nkd.new_zeros(len(y_nkd), y_nkd.shape[-1], dtype=torch.float32)
    for choice in range(y_nkd.shape[1]):
        total = total + weights_nk[:, choice, None] * y_nkd[:, choice]
    return total.to(y_nkd.dtype)


def filled(x: Tensor, rows: int) -> Tensor:
    """Pad x with rows of zeros until the number of rows is a multiple of `rows`."""
    missing = -len(x) % rows
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


def tiled(x_rk: Tensor, weight_mk: Tensor) -> Tensor:
    """Compute x W^T tile by tile, without a gradient."""
    rows = tile_rows(x_rk.dtype)
    x, weight = as_multiplied(filled(x_rk, rows)).contiguous(), as_multiplied(weight_mk)
    y = x.new_empty(len(x), len(weight))
    for part, out in zip(x.split(rows), y.split(rows), strict=True):
        torch.mm(part, weight.T, out=out)
    return y[: len(x_rk)].to(x_rk.dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return tiled(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (dy,), (x, weight) = grads, ctx.saved_tensors
        dx, dw = ctx.needs_input_grad
        return product(dy, weight) if dx else None, product(dy.T, x) if dw else None


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        tiles, weights = as_multiplied(x), as_multiplied(weight)
        y = tiles.new_empty(*x.shape[:-1], weight.shape[1])
        for part, out in zip(tiles, y, strict=True):
            torch.bmm(part, weights.mT, out=out)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (dy,), (x, weight) = grads, ctx.saved_tensors
        dy_grm, x_grk = (part.transpose(0, 1).flatten(1, 2) for part in (dy, x))
        dx = product(dy_grm, weight).unflatten(1, (-1, x.shape[2])).transpose(0, 1)
        return dx if ctx.needs_input_grad[0] else None, product(dy_grm.mT, x_grk) if ctx.needs_input_grad[1] else None


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.to(torch.float32)
        return (wide / (1 + torch.exp(-wide))).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cast(Tensor, torch.ops.aten.silu_backward(grads[0], x))


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (dy,), (y,) = grads, ctx.saved_tensors
        dx: Tensor = dy * y * (1 - y)
        return dx
