"""NVFP4: E2M1 numbers, for every 16 of them an E4M3 scale, and one fp32 scale outside: per token (a row) or per tensor.

Invariant: a number is the exact product of its code, its block's scale and the outer one, rounded once. With an outer
scale per token a row's codes depend on nothing but the row; per tensor they depend on the largest number anywhere.

- outer = absmax / (6 * 448), so the scale of the block with the largest number is E4M3's largest.
- block = absmax of the block / 6 / outer, to the nearest E4M3. Its subnormals are not used: they are spaced so widely
  that a block would come back with another scale when quantised again.
- code = number / (block * outer), to the nearest E2M1.

All divisions are IEEE's. `reciprocal_bits` multiplies by a reciprocal good to that many bits instead, as fast-math
kernels do, for studies of what that costs: by that of outer for a block's scale, by that of block * outer for a code.
The constants 6 and 2688 are divided by all the same: a compiler knows their reciprocals to the last bit.

A row (per tensor: the tensor) with NaN or an infinity in it becomes NaN. Under an outer scale that was given, what is
beyond its reach saturates, infinities too, and a NaN makes its block NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from etude.model.precision.blocks import as_rows, block_absmax, divide_, like, multiply_, negatives, rows_of, tiles
from etude.model.precision.elements import (
    E2M1,
    E4M3,
    from_e2m1,
    from_e4m3,
    has_nan,
    pack_pairs,
    round_to_,
    significant_bits_,
    to_e2m1,
    to_e4m3,
)

BLOCK = 16
SMALLEST_OUTER = 2.0**-120
"""Also that of zeros. No product with a block's scale, nor its reciprocal, leaves fp32's normal numbers."""
_NAN_CODE = 0x7F

Reach = Literal["token", "tensor"]


@dataclass(frozen=True, slots=True)
class NVFP4:
    codes: Tensor
    """[..., K / 2] uint8: two E2M1 codes a byte, the first of a pair in the low half"""
    scales: Tensor
    """[..., K / 16] float8_e4m3fn"""
    outer: Tensor
    """fp32, [..., 1] per token, [] per tensor; a given one as it was given"""


def outer_scale(absmax: Tensor) -> Tensor:
    """fp32 -> the outer scale for numbers up to it. NaN unless it is finite."""
    scale = (absmax / (E2M1.largest * E4M3.largest)).clamp_min_(SMALLEST_OUTER)
    return scale.masked_fill_(~scale.isfinite(), torch.nan)


def quantise_nvfp4(
    x: Tensor, *, per: Reach = "token", outer: Tensor | None = None, reciprocal_bits: int | None = None
) -> NVFP4:
    """`outer` broadcasts to [..., 1] and takes the place of the scale that `per` asks for."""
    # Otherwise a quotient is at most 6 * 17 / 16, since a block's scale is rounded by no more than that.
    rows, may_saturate = rows_of(x, BLOCK, "NVFP4"), outer is not None or reciprocal_bits is not None
    scales, outer = _scales(rows, x.shape, per, outer, reciprocal_bits)
    divisors = _products(scales, outer, x.shape)
    packed = torch.empty(rows.shape[0], rows.shape[1] // 2, dtype=torch.uint8, device=x.device)
    for buffers, (part, divisor, out) in tiles(rows, divisors, packed):
        quotients = _divide_(buffers.values.copy_(part).abs_(), divisor, reciprocal_bits)
        if may_saturate:
            quotients.clamp_max_(E2M1.largest)
        codes = to_e2m1(quotients, buffers.codes, buffers.work)
        # Eight times 255 less is eight more, in a byte.
        pack_pairs(codes.sub_(negatives(part, buffers), alpha=8), out)
    if has_nan(scales):
        nan = scales.view(torch.uint8) == _NAN_CODE
        packed.masked_fill_(nan.repeat_interleave(BLOCK // 2, -1), 0)
    return NVFP4(like(x, packed), like(x, scales), outer)


def dequantise_nvfp4(q: NVFP4, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    shape = (*q.codes.shape[:-1], 2 * q.codes.shape[-1])
    codes, scales = as_rows(q.codes), _values(as_rows(q.scales))
    outer = _by_row(q.outer, shape)
    out = torch.empty(codes.shape[0], shape[-1], dtype=dtype, device=codes.device)
    for buffers, (back, code, scale, by) in tiles(out, codes, scales, outer):
        back.copy_(multiply_(from_e2m1(code, buffers.values), scale).mul_(by))
    return out.view(shape)


def fake_nvfp4(
    x: Tensor,
    dtype: torch.dtype | None = None,
    *,
    per: Reach = "token",
    outer: Tensor | None = None,
    reciprocal_bits: int | None = None,
) -> Tensor:
    """dequantise(quantise(x)), in the dtype of x unless another is asked for, but for the sign of zeros."""
    values, _ = _rounded(x, dtype or x.dtype, per, outer, reciprocal_bits, whole=True)
    return values


def split_nvfp4(
    x: Tensor,
    dtype: torch.dtype | None = None,
    *,
    per: Reach = "token",
    outer: Tensor | None = None,
    reciprocal_bits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """What a matmul multiplies, code * block, exact in bf16 and fp32; and the outer scale, for its epilogue."""
    return _rounded(x, dtype or x.dtype, per, outer, reciprocal_bits, whole=False)


def _rounded(
    x: Tensor, dtype: torch.dtype, per: Reach, outer: Tensor | None, reciprocal_bits: int | None, *, whole: bool
) -> tuple[Tensor, Tensor]:
    """With the outer scale (`whole`) or without it; and that scale in its own shape."""
    rows, may_saturate = rows_of(x, BLOCK, "NVFP4"), outer is not None or reciprocal_bits is not None
    codes, outer = _scales(rows, x.shape, per, outer, reciprocal_bits)
    divisors, scales, by_row = _products(codes, outer, x.shape), _values(codes), _by_row(outer, x.shape)
    out = torch.empty(rows.shape, dtype=dtype, device=x.device)
    for buffers, (part, divisor, scale, by, back) in tiles(rows, divisors, scales, by_row, out):
        quotients = _divide_(buffers.values.copy_(part), divisor, reciprocal_bits)
        values = multiply_(round_to_(quotients, E2M1, buffers.work, may_saturate=may_saturate), scale)
        back.copy_(values.mul_(by) if whole else values)
    return out.view(x.shape), outer


def _scales(
    rows: Tensor, shape: torch.Size, per: Reach, outer: Tensor | None, reciprocal_bits: int | None
) -> tuple[Tensor, Tensor]:
    """E4M3 codes [N, K / 16] and the outer scale in its own shape."""
    absmax = block_absmax(rows, BLOCK)
    if outer is None and per == "token":
        outer = outer_scale(absmax.amax(-1)).view(*shape[:-1], 1)
    elif outer is None:
        outer = outer_scale(absmax.max() if absmax.numel() else absmax.new_zeros(()))
    # As two divisions, each rounded, like torchao; ModelOpt divides once, by 6 * outer, which may differ beside a tie.
    wanted = _divide_(absmax.div_(E2M1.largest), _by_row(outer, shape), reciprocal_bits)
    wanted.clamp_(E4M3.smallest_normal, E4M3.largest)
    scales = torch.empty(wanted.shape, dtype=torch.float8_e4m3fn, device=rows.device)
    to_e4m3(wanted, scales, may_saturate=False)
    scales.view(torch.uint8).bitwise_and_(_NAN_CODE)  # NaN has a sign too
    return scales, outer


def _values(codes: Tensor) -> Tensor:
    return from_e4m3(codes, torch.empty(codes.shape, dtype=torch.float32, device=codes.device))


def _by_row(outer: Tensor, shape: tuple[int, ...]) -> Tensor:
    return outer.expand(*shape[:-1], 1).reshape(-1, 1)


def _products(scales: Tensor, outer: Tensor, shape: tuple[int, ...]) -> Tensor:
    return _values(scales).mul_(_by_row(outer, shape))


def _divide_(values: Tensor, divisors: Tensor, reciprocal_bits: int | None) -> Tensor:
    if reciprocal_bits is None:
        return divide_(values, divisors)
    return multiply_(values, significant_bits_(divisors.reciprocal(), reciprocal_bits))
