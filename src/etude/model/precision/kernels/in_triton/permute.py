"""Moves tokens to the rows of their experts and back, in Triton. Each direction is the gradient of the other:

- `permute(x, placement)` copies each token to its rows and fills unused rows with zeros. Its gradient is `unpermute`.
- `unpermute(y, placement, gates)` sums each token's rows, weighted by their gates. Its gradient is `permute` with the
  same gates, and `gate_gradients` for the gates.

A token's rows are summed in fp32 in the order of its experts in the routing, and rounded once to the dtype of y. Gates
are rounded to that dtype first: a product of two bf16 numbers is exact in fp32, so a fused multiply-add gives the same
sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.model.placing import Placement
from etude.model.precision.kernels.in_triton.bits import wide, words_for
from etude.model.precision.kernels.in_triton.launch import on_device, words

STRIDE = 1024
"""Number of elements of a row that a Triton program processes per loop iteration."""


def permute(x_nd: Tensor, placement: Placement, gates_nk: Tensor | None = None) -> Tensor:
    """Copy tokens [N, D] to rows [R, D], one row for each expert of a token. If gates are given, a row is multiplied by
    the gate (routing weight) of its token and expert."""
    x_nd = x_nd.contiguous()
    rows, width = placement.token_r.numel(), x_nd.shape[1]
    out = x_nd.new_empty(rows, width)
    gates = x_nd.new_zeros(1) if gates_nk is None else x_nd.new_zeros(rows)
    if gates_nk is not None:
        gates.scatter_(0, placement.row_nk.flatten().long(), gates_nk.flatten().to(x_nd.dtype))
    if rows:
        with on_device(x_nd):
            _permute[(rows,)](
                words(x_nd),
                placement.token_r,
                words(gates),
                words(out),
                width,
                GATED=gates_nk is not None,
                STRIDE=STRIDE,
                enable_fp_fusion=False,
            )
    return out


def unpermute(y_rd: Tensor, placement: Placement, gates_nk: Tensor | None = None) -> Tensor:
    """Sum the rows [R, D] of each token, one for each of its experts, to tokens [N, D]. If gates (routing weights) are
    given, the sum is weighted by them."""
    y_rd = y_rd.contiguous()
    (tokens, choices), width = placement.row_nk.shape, y_rd.shape[1]
    out = y_rd.new_empty(tokens, width)
    gates = y_rd if gates_nk is None else gates_nk.to(y_rd.dtype).contiguous()
    if tokens:
        with on_device(y_rd):
            _unpermute[(tokens,)](
                words(y_rd),
                placement.row_nk,
                words(gates),
                words(out),
                width,
                CHOICES=choices,
                GATED=gates_nk is not None,
                STRIDE=STRIDE,
                enable_fp_fusion=False,
            )
    return out


def gate_gradients(grad_nd: Tensor, y_rd: Tensor, placement: Placement) -> Tensor:
    """Return the fp32 gradients [N, K] of the gates given to `unpermute`. `grad_nd` is the gradient of its result,
    `y_rd` are the rows that it summed."""
    grad_nd, y_rd = grad_nd.contiguous(), y_rd.contiguous()
    (tokens, choices), width = placement.row_nk.shape, y_rd.shape[1]
    out = grad_nd.new_empty(tokens, choices, dtype=torch.float32)
    if tokens:
        with on_device(y_rd):
            _gate_gradients[(tokens, choices)](
                words(grad_nd), words(y_rd), placement.row_nk, out, width, choices, STRIDE=STRIDE
            )
    return out


@triton.jit
def _permute(x, tokens, gates, out, width, GATED: tl.constexpr, STRIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row).to(tl.int64)
    filled = tl.where(token < 0, 0, width)
    for start in tl.range(0, width, STRIDE):
        column = start + tl.arange(0, STRIDE)
        moved = tl.load(x + token * width + column, column < filled, 0)
        if GATED:
            moved = words_for(out, wide(moved) * wide(tl.load(gates + row)))
        tl.store(out + row * width + column, moved, column < width)


@triton.jit
def _unpermute(y, rows, gates, out, width, CHOICES: tl.constexpr, GATED: tl.constexpr, STRIDE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    for start in tl.range(0, width, STRIDE):
        column = start + tl.arange(0, STRIDE)
        total = tl.zeros((STRIDE,), tl.float32)
        for choice in tl.static_range(CHOICES):
            row = tl.load(rows + token * CHOICES + choice).to(tl.int64)
            part = wide(tl.load(y + row * width + column, column < width, 0))
            if GATED:
                part = part * wide(tl.load(gates + token * CHOICES + choice))
            total += part
        tl.store(out + token * width + column, words_for(out, total), column < width)


@triton.jit
def _gate_gradients(grads, y, rows, out, width, choices, STRIDE: tl.constexpr):
    token, choice = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + token * choices + choice).to(tl.int64)
    total = tl.zeros((STRIDE,), tl.float32)
    for start in tl.range(0, width, STRIDE):
        column = start + tl.arange(0, STRIDE)
        grad = wide(tl.load(grads + token * width + column, column < width, 0))
        total += grad * wide(tl.load(y + row * width + column, column < width, 0))
    tl.store(out + token * choices + choice, tl.sum(total))
