"""NVFP4: E2M1 numbers, one E4M3 scale per block of 16, and one fp32 outer scale per token (row) or per tensor.

Invariant: a dequantised number is the exact product of its code, its block's scale and the outer scale, rounded once.
With an outer scale per token, a row's codes depend only on the row; with one per tensor, they depend on the largest
number of the whole tensor.

- outer = absmax / (6 * 448), so the block with the largest number gets E4M3's largest scale.
- block = absmax of the block / 6 / outer, rounded to the nearest E4M3. Subnormal scales are not used: they are so far
  apart that a block would get another scale when quantised again.
- code = number / (block * outer), rounded to the nearest E2M1.

All divisions are IEEE. With `reciprocal_bits`, the divisions by outer and by block * outer become multiplications by
reciprocals of that many bits, as in fast-math kernels; studies measure what that costs. Divisions by the constants 6
and 2688 stay exact, because a compiler knows the reciprocals of constants to the last bit.

A NaN or infinity makes its row (per tensor: the whole tensor) NaN. If the caller gives the outer scale, numbers too
large for it and infinities saturate, and a NaN makes its block NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from etude.model.precision.elements import E2M1, E4M3, from_e4m3, has_nan, significant_bits_, to_e4m3
from etude.model.precision.passes import RoundingScales, passes_on
from etude.model.precision.rows import as_rows, like, rows_of

BLOCK = 16
SMALLEST_OUTER = 2.0**-120
"""Smallest outer scale, also of an all-zero row. Its reciprocal and products with block scales are normal in fp32."""
_NAN_CODE = 0x7F

ScaleScope = Literal["token", "tensor"]
"""Which numbers share one outer scale: those of one token (a row), or those of the whole tensor."""


@dataclass(frozen=True, slots=True)
class NVFP4:
    codes: Tensor
    """Codes, uint8 [..., K / 2]: two E2M1 codes per byte, the first of a pair in the low half."""
    scales: Tensor
    """Scale of each block of 16: float8_e4m3fn [..., K / 16]."""
    outer: Tensor
    """Outer scales in fp32: [..., 1] per token, [] per tensor. A scale given by the caller keeps its shape."""


def outer_scale(absmax: Tensor) -> Tensor:
    """Return the outer scale for numbers of magnitude up to `absmax` (fp32); NaN if absmax is not finite."""
    scale = (absmax / (E2M1.largest * E4M3.largest)).clamp_min_(SMALLEST_OUTER)
    return scale.masked_fill_(~scale.isfinite(), torch.nan)


def quantise_nvfp4(
    x: Tensor, *, per: ScaleScope = "token", outer: Tensor | None = None, reciprocal_bits: int | None = None
) -> NVFP4:
    """Quantise x to NVFP4. `outer`, broadcast to [..., 1], gives the outer scales; None computes them."""
    rows = rows_of(x, BLOCK, "NVFP4")
    scales, outer = _scales(rows, x.shape, per, outer, reciprocal_bits)
    divisors, divide = _divisors(_products(scales, outer, x.shape), reciprocal_bits)
    packed = passes_on(x.device).encode_e2m1(rows, divisors, divide=divide)
    if has_nan(scales):
        nan = scales.view(torch.uint8) == _NAN_CODE
        packed.masked_fill_(nan.repeat_interleave(BLOCK // 2, -1), 0)
    return NVFP4(like(x, packed), like(x, scales), outer)


def dequantise_nvfp4(q: NVFP4, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    shape = (*q.codes.shape[:-1], 2 * q.codes.shape[-1])
    scales, outer = from_e4m3(as_rows(q.scales)), _by_row(q.outer, shape)
    return passes_on(q.codes.device).decode_e2m1(as_rows(q.codes), scales, outer, dtype).view(shape)


def fake_nvfp4(x: Tensor, *, per: ScaleScope = "token", reciprocal_bits: int | None = None) -> Tensor:
    """Return dequantise(quantise(x)), except that zeros may have another sign."""
    return _rounded(x, x.dtype, per, reciprocal_bits, whole=True)[0]


def split_nvfp4(
    x: Tensor, dtype: torch.dtype | None = None, *, per: ScaleScope = "token", reciprocal_bits: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the rounded values without the outer scale (each code times its block scale), and that scale.

    The values are exact in bf16 and fp32, so a matmul can multiply them and then apply the outer scale to the sums.
    """
    return _rounded(x, dtype or x.dtype, per, reciprocal_bits, whole=False)


def _rounded(
    x: Tensor, dtype: torch.dtype, per: ScaleScope, reciprocal_bits: int | None, *, whole: bool
) -> tuple[Tensor, Tensor]:
    """Return the rounded values and the outer scale, which is multiplied into the values if `whole`."""
    rows = rows_of(x, BLOCK, "NVFP4")
    codes, outer = _scales(rows, x.shape, per, None, reciprocal_bits)
    divisors, divide = _divisors(_products(codes, outer, x.shape), reciprocal_bits)
    by_row = _by_row(outer, x.shape) if whole else None
    values = passes_on(x.device).round_to(
        rows, E2M1, RoundingScales(divisors, from_e4m3(codes), by_row), dtype, divide=divide
    )
    return values.view(x.shape), outer


def _scales(
    rows: Tensor, shape: torch.Size, per: ScaleScope, outer: Tensor | None, reciprocal_bits: int | None
) -> tuple[Tensor, Tensor]:
    """Return the block scales as E4M3 codes [N, K / 16], and the outer scales: `outer` if given, else computed."""
    absmax = passes_on(rows.device).largest(rows, BLOCK)
    if outer is None and per == "token":
        outer = outer_scale(absmax.amax(-1)).view(*shape[:-1], 1)
    elif outer is None:
        outer = outer_scale(absmax.max() if absmax.numel() else absmax.new_zeros(()))
    # Two divisions, each rounded, as in torchao. ModelOpt divides once, by 6 * outer, which may round differently.
    divisors, divide = _divisors(_by_row(outer, shape), reciprocal_bits)
    wanted = absmax.div_(E2M1.largest)
    wanted = wanted.div_(divisors) if divide else wanted.mul_(divisors)
    wanted.clamp_min_(E4M3.smallest_normal)
    scales = to_e4m3(wanted)
    scales.view(torch.uint8).bitwise_and_(_NAN_CODE)  # clears the sign bit, which a NaN may have
    return scales, outer


def _by_row(outer: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand the outer scale to [N, 1], for rows of a tensor of this shape."""
    return outer.expand(*shape[:-1], 1).reshape(-1, 1)


def _products(scales: Tensor, outer: Tensor, shape: tuple[int, ...]) -> Tensor:
    return from_e4m3(scales).mul_(_by_row(outer, shape))


def _divisors(scales: Tensor, reciprocal_bits: int | None) -> tuple[Tensor, bool]:
    """Return the scales and True, to divide by them. With `reciprocal_bits`, return their reciprocals, rounded to this
    many bits, and False, to multiply by them."""
    if reciprocal_bits is None:
        return scales, True
    return significant_bits_(scales.reciprocal(), reciprocal_bits), False
