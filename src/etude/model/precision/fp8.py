"""FP8 with fp32 scales: one scale per block (DeepSeek's format) or one per row.

Blocks are 128 x 128 for weights and 1 x 128 for activations. Incomplete blocks at the edges are padded with zeros, so
an M x K weight has ceil(M / 128) x ceil(K / 128) scales.

Invariant: scale = absmax / 448 over the numbers that share it; code = number / scale rounded to the nearest E4M3; both
divisions are IEEE. A NaN or infinity makes all numbers that share its scale NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.errors import CannotQuantise
from etude.model.precision.elements import E4M3
from etude.model.precision.passes import RoundingScales, passes_on
from etude.model.precision.rows import as_rows, like, rows_of

BLOCK = 128
SMALLEST_SCALE = 2.0**-126
"""Smallest scale, used for all-zero blocks too. It is fp32's least normal number, so no GPU flushes it to zero."""
_NAN_CODE = 0x7F


@dataclass(frozen=True, slots=True)
class BlockFP8:
    codes: Tensor
    """E4M3 codes: float8_e4m3fn [..., M, K]."""
    scales: Tensor
    """Scale of each block: fp32 [..., ceil(M / rows), ceil(K / 128)]."""
    rows: int = BLOCK
    """Block height: 128 for weights, 1 for activations."""


@dataclass(frozen=True, slots=True)
class RowFP8:
    codes: Tensor
    """E4M3 codes: float8_e4m3fn [..., K]."""
    scales: Tensor
    """Scale of each row: fp32 [..., 1]."""


def quantise_block_fp8(x: Tensor, *, rows: int = BLOCK) -> BlockFP8:
    """Quantise to FP8 with one scale per block of `rows` x 128."""
    padded, scales = _block_scales(x, rows)
    codes = like(x, _codes(padded, _to_rows(scales, x.shape, rows)))
    return BlockFP8(codes[..., : x.shape[-1]].contiguous(), scales, rows)


def dequantise_block_fp8(q: BlockFP8, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    codes = _filled_up(q.codes.view(torch.uint8)).view(torch.float8_e4m3fn)
    values = _from_codes(as_rows(codes), _to_rows(q.scales, q.codes.shape, q.rows), dtype)
    return like(q.codes, values)[..., : q.codes.shape[-1]].contiguous()


def fake_block_fp8(x: Tensor, dtype: torch.dtype | None = None, *, rows: int = BLOCK) -> Tensor:
    """Return dequantise(quantise(x)), except that zeros may have another sign. `dtype` defaults to that of x."""
    padded, scales = _block_scales(x, rows)
    values = like(x, _fake(padded, _to_rows(scales, x.shape, rows), dtype or x.dtype))
    return values[..., : x.shape[-1]].contiguous()


def quantise_row_fp8(x: Tensor) -> RowFP8:
    rows = rows_of(x, 1, "row-wise FP8")
    scales = _scale(_largest(rows, rows.shape[1]))
    return RowFP8(_codes(rows, scales).view(x.shape), scales.view(*x.shape[:-1], 1))


def dequantise_row_fp8(q: RowFP8, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return _from_codes(as_rows(q.codes), q.scales.reshape(-1, 1), dtype).view(q.codes.shape)


def fake_row_fp8(x: Tensor) -> Tensor:
    """Return dequantise(quantise(x)), except that zeros may have another sign."""
    rows = rows_of(x, 1, "row-wise FP8")
    return _fake(rows, _scale(_largest(rows, rows.shape[1])), x.dtype).view(x.shape)


def _largest(rows: Tensor, block: int) -> Tensor:
    return passes_on(rows.device).largest(rows, block)


def _scale(absmax: Tensor) -> Tensor:
    scale = (absmax / E4M3.largest).clamp_min_(SMALLEST_SCALE)
    return scale.masked_fill_(~scale.isfinite(), torch.nan)


def _block_scales(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return x [..., M, K] as a matrix whose rows are padded to a multiple of 128 values, and the scales
    [..., ceil(M / rows), ceil(K / 128)] of its blocks of `rows` x 128."""
    if x.dim() < 2:
        raise CannotQuantise(f"block FP8 needs a matrix; the shape is {tuple(x.shape)}")
    padded = rows_of(_filled_up(x), BLOCK, "block FP8")
    absmax = like(x, _largest(padded, BLOCK))
    absmax = F.pad(absmax, (0, 0, 0, -x.shape[-2] % rows))
    return padded, _scale(absmax.unflatten(-2, (absmax.shape[-2] // rows, rows)).amax(-2))


def _filled_up(x: Tensor) -> Tensor:
    lacking = -x.shape[-1] % BLOCK
    return F.pad(x, (0, lacking)) if lacking else x


def _to_rows(scales: Tensor, shape: torch.Size, rows: int) -> Tensor:
    """Repeat block scales, so that every row of a tensor with this shape has the scales of its own blocks."""
    return scales.repeat_interleave(rows, -2)[..., : shape[-2], :].reshape(-1, scales.shape[-1])


def _codes(rows: Tensor, scales: Tensor) -> Tensor:
    """Return the E4M3 codes of number / scale; NaN where the scale is NaN.

    No quotient exceeds 448, the largest E4M3 value, because the scale is absmax / 448, correctly rounded, or larger.
    """
    codes = passes_on(rows.device).encode_e4m3(rows, scales, divide=True)
    nan = scales.isnan()
    if bool(nan.any()):
        codes.view(torch.uint8).masked_fill_(nan.repeat_interleave(rows.shape[1] // scales.shape[1], -1), _NAN_CODE)
    return codes


def _from_codes(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return passes_on(codes.device).decode_e4m3(codes, scales.contiguous(), dtype)


def _fake(rows: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return passes_on(rows.device).round_to(rows, E4M3, RoundingScales(scales, scales), dtype, divide=True)
