"""MXFP8: E4M3 numbers, and for every 32 of them along the contraction axis one power of two.

Invariant: the power is the least one that takes the block's largest magnitude to at most 448, so no finite number
saturates; dividing by it is exact, so each number is rounded once. Powers end at 2^-127, below which numbers only get
smaller. A NaN makes its whole block NaN. An infinity comes back as one, and its block
keeps what is not small beside 2^118.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model.precision.blocks import as_rows, block_absmax, like, multiply_, rows_of, tiles
from etude.model.precision.elements import (
    E4M3,
    e8m0_not_below,
    from_e4m3,
    from_e8m0,
    reciprocal_of_e8m0,
    round_to_,
    to_e4m3,
)

BLOCK = 32
_INFINITE_SCALE, _NAN_SCALE, _NAN_CODE = 0xFE, 0xFF, 0x7F


@dataclass(frozen=True, slots=True)
class MXFP8:
    codes: Tensor
    """[..., K] float8_e4m3fn"""
    scales: Tensor
    """[..., K / 32] uint8, E8M0"""


def quantise_mxfp8(x: Tensor) -> MXFP8:
    rows = rows_of(x, BLOCK, "MXFP8")
    scales = _scales(rows)
    factors, infinite = reciprocal_of_e8m0(scales), _infinite(scales)
    codes = torch.empty(rows.shape, dtype=torch.float8_e4m3fn, device=x.device)
    for buffers, (part, factor, code) in tiles(rows, factors, codes):
        to_e4m3(multiply_(buffers.values.copy_(part), factor), code, may_saturate=infinite)
    if infinite:
        nan = scales == _NAN_SCALE
        codes.view(torch.uint8).masked_fill_(nan.repeat_interleave(BLOCK, -1), _NAN_CODE)
    return MXFP8(codes.view(x.shape), like(x, scales))


def dequantise_mxfp8(q: MXFP8, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    codes, scales = as_rows(q.codes), from_e8m0(as_rows(q.scales))
    out = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    for buffers, (code, scale, back) in tiles(codes, scales, out):
        back.copy_(multiply_(from_e4m3(code, buffers.values), scale))
    return out.view(q.codes.shape)


def fake_mxfp8(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """dequantise(quantise(x)), in the dtype of x unless another is asked for, but for the sign of zeros."""
    rows = rows_of(x, BLOCK, "MXFP8")
    codes = _scales(rows)
    factors, scales, infinite = reciprocal_of_e8m0(codes), from_e8m0(codes), _infinite(codes)
    out = torch.empty(rows.shape, dtype=dtype or x.dtype, device=x.device)
    for buffers, (part, factor, scale, back) in tiles(rows, factors, scales, out):
        values = multiply_(buffers.values.copy_(part), factor)
        back.copy_(multiply_(round_to_(values, E4M3, buffers.work, may_saturate=infinite), scale))
    return out.view(x.shape)


def _scales(rows: Tensor) -> Tensor:
    return e8m0_not_below(block_absmax(rows, BLOCK), E4M3.largest)


def _infinite(scales: Tensor) -> bool:
    """Whether there is an infinity or NaN anywhere; without, nothing can saturate."""
    return scales.numel() > 0 and int(scales.max()) >= _INFINITE_SCALE
