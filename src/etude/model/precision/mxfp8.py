"""MXFP8: E4M3 numbers with one power-of-two scale per block of 32 along the contraction axis.

Invariant: the scale is the smallest power of two that brings the block's largest magnitude to at most 448, so no finite
number saturates. Dividing by it is exact, so each number is rounded once. The smallest scale is 2^-127; blocks that
would need a smaller one lose precision. A NaN makes its whole block NaN. An infinity stays infinite, but its block then
gets the largest scale, which rounds numbers far below 2^118 to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model.precision.elements import E4M3, e8m0_not_below, from_e8m0, reciprocal_of_e8m0
from etude.model.precision.passes import RoundingScales, passes_on
from etude.model.precision.rows import as_rows, like, rows_of

BLOCK = 32
_NAN_SCALE, _NAN_CODE = 0xFF, 0x7F


@dataclass(frozen=True, slots=True)
class MXFP8:
    codes: Tensor
    """E4M3 codes: float8_e4m3fn [..., K]."""
    scales: Tensor
    """Scale of each block of 32, as E8M0 code: uint8 [..., K / 32]."""


def quantise_mxfp8(x: Tensor) -> MXFP8:
    rows = rows_of(x, BLOCK, "MXFP8")
    scales = _scales(rows)
    codes = passes_on(x.device).encode_e4m3(rows, reciprocal_of_e8m0(scales), divide=False)
    nan = scales == _NAN_SCALE
    if bool(nan.any()):
        codes.view(torch.uint8).masked_fill_(nan.repeat_interleave(BLOCK, -1), _NAN_CODE)
    return MXFP8(codes.view(x.shape), like(x, scales))


def dequantise_mxfp8(q: MXFP8, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    scales = from_e8m0(as_rows(q.scales))
    return passes_on(q.codes.device).decode_e4m3(as_rows(q.codes), scales, dtype).view(q.codes.shape)


def fake_mxfp8(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return dequantise(quantise(x)), except that zeros may have another sign. `dtype` defaults to that of x."""
    rows = rows_of(x, BLOCK, "MXFP8")
    codes = _scales(rows)
    factors, scales = reciprocal_of_e8m0(codes), from_e8m0(codes)
    by = RoundingScales(factors, scales)
    return passes_on(x.device).round_to(rows, E4M3, by, dtype or x.dtype, divide=False).view(x.shape)


def _scales(rows: Tensor) -> Tensor:
    return e8m0_not_below(passes_on(rows.device).largest(rows, BLOCK), E4M3.largest)
