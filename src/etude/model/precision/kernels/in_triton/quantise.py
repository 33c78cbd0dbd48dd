"""Quantisers in Triton, bit-equal to the references in plain torch.

x is read once, even if both x and its transpose are quantised. If x is a SwiGLU product, the same kernel computes
SwiGLU.

"Columns" means the quantised transpose of x: the operand of a matmul that contracts over the rows of x. Its blocks of
32 or 128 numbers lie along tokens, so each expert's tokens must begin at a multiple of the block size
(`place_pairs(..., multiple=)` ensures it).

There are two kernels. `_quantise_tiles` is for formats whose scales cover no more than a tile. `_quantise_rows` is for
formats whose scales depend on a whole row (NVFP4, FP8 per row); a program keeps the row in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.model.errors import CannotQuantise
from etude.model.precision import fp8, mxfp8, nvfp4
from etude.model.precision.formats import Quantised, format_named
from etude.model.precision.fp8 import BlockFP8, RowFP8
from etude.model.precision.kernels.in_triton.bits import (
    SMALLEST_FP8_SCALE,
    SMALLEST_OUTER,
    e2m1_codes,
    e4m3_codes,
    e8m0_not_below,
    magnitudes,
    normal_e4m3,
    reciprocal_of_e8m0,
    scale_for,
    swiglu,
    wide,
)
from etude.model.precision.kernels.in_triton.launch import on_device, words
from etude.model.precision.mxfp8 import MXFP8
from etude.model.precision.nvfp4 import NVFP4, outer_scale
from etude.model.precision.rows import rows_of

LONGEST_ROW = 16384
"""Maximum length of a row for `_quantise_rows`, which keeps it in registers."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Block size of a format, and the tiles with which `_quantise_tiles` quantises to it."""

    tall: int
    """Rows of a block; each block has one scale."""
    wide: int
    """Columns of a block."""
    mx: bool
    """Whether scales are powers of two (E8M0) instead of fp32."""
    rows: tuple[int, int, int]
    """Rows and columns of a tile, and number of warps, to quantise a tensor but not its transpose."""
    both: tuple[int, int, int]
    """Rows and columns of a tile, and number of warps, to quantise a tensor and its transpose."""


# Tile heights, widths and warps with the fewest instructions per number on Hopper, without register spills.
TILINGS = {
    "mxfp8": Tiling(1, mxfp8.BLOCK, True, rows=(16, 256, 4), both=(32, 256, 4)),
    "fp8_tile": Tiling(1, fp8.BLOCK, False, rows=(16, 256, 4), both=(128, 128, 16)),
    "fp8_block": Tiling(fp8.BLOCK, fp8.BLOCK, False, rows=(128, 128, 16), both=(128, 128, 16)),
}


def quantise(x: Tensor, format: str, *, outer: Tensor | None = None) -> Quantised:
    """Quantise x along its last axis. `outer`, for the nvfp4 formats only, is used instead of computed outer scales."""
    if outer is not None and not format.startswith("nvfp4"):
        raise CannotQuantise(f"{format} has no outer scale; only the nvfp4 formats take `outer`")
    if format in TILINGS:
        return _by_tiles(x, None, format, columns=False)[0]
    return _by_rows(x, None, format, outer)


def quantise_both(x: Tensor, format: str) -> tuple[Quantised, Quantised]:
    """Quantise x and its transpose, each along its last axis, reading x once."""
    return _both(_by_tiles(x, None, _tiled(format), columns=True))


def swiglu_quantise(gate: Tensor, up: Tensor, format: str) -> Quantised:
    """Quantise silu(gate) * up. Both inputs are bf16, and the product is rounded to bf16 before it is quantised."""
    if format in TILINGS:
        return _by_tiles(gate, up, format, columns=False)[0]
    return _by_rows(gate, up, format, None)


def swiglu_quantise_both(gate: Tensor, up: Tensor, format: str) -> tuple[Quantised, Quantised]:
    return _both(_by_tiles(gate, up, _tiled(format), columns=True))


def _tiled(format: str) -> str:
    if format not in TILINGS:
        raise CannotQuantise(f"{format} has scales of whole rows: rows and columns cannot be quantised in one pass")
    return format


def _both(made: list[Quantised]) -> tuple[Quantised, Quantised]:
    return made[0], made[1]


def _by_tiles(x: Tensor, up: Tensor | None, format: str, *, columns: bool) -> list[Quantised]:
    tiling = TILINGS[format]
    if x.dim() < 2:
        raise CannotQuantise(f"{format} needs at least two dimensions; the shape is {tuple(x.shape)}")
    if tiling.mx and columns:
        rows_of(x.mT[..., :1, :], tiling.wide, "MXFP8 of the transpose")
    values, beside = _given(x, up, tiling.wide if tiling.mx else 1, format)
    *leading, height, width = x.shape
    made = [_empty(x, [*leading, height, width], tiling)]
    made += [_empty(x, [*leading, width, height], tiling)] if columns else []
    if x.numel():
        tile_rows, tile_columns, warps = tiling.both if columns else tiling.rows
        grid = (triton.cdiv(height, tile_rows) * triton.cdiv(width, tile_columns), x.numel() // (height * width))
        with on_device(x):
            _quantise_tiles[grid](
                values,
                beside,
                *(part for q in (made[0], made[-1]) for part in (q.codes.view(torch.uint8), q.scales)),
                height,
                width,
                TALL=tiling.tall,
                WIDE=tiling.wide,
                MX=tiling.mx,
                SWIGLU=up is not None,
                COLUMNS=columns,
                TILE_ROWS=tile_rows,
                TILE_COLUMNS=tile_columns,
                num_warps=warps,
                enable_fp_fusion=False,
            )
    return made


def _by_rows(x: Tensor, up: Tensor | None, format: str, outer: Tensor | None) -> Quantised:
    format_named(format)
    four = format != "fp8_row"
    values, beside = _given(x, up, nvfp4.BLOCK if four else 1, format)
    width = x.shape[-1]
    if width > LONGEST_ROW:
        raise CannotQuantise(f"{format}: the kernel takes rows of up to {LONGEST_ROW} numbers, not {width}")
    given = outer is not None or format == "nvfp4_tensor"
    if outer is None and given:
        if up is not None:
            raise CannotQuantise("nvfp4_tensor needs the maximum of the whole tensor first: apply SwiGLU before it")
        # The maximum of the whole tensor needs a pass of its own.
        low, high = x.detach().aminmax() if x.numel() else (x.new_zeros(()), x.new_zeros(()))
        outer = outer_scale(torch.maximum(-low, high).float())
    scales = x.new_empty(
        *x.shape[:-1], width // nvfp4.BLOCK if four else 1, dtype=torch.uint8 if four else torch.float32
    )
    codes = x.new_empty(*x.shape[:-1], width // 2 if four else width, dtype=torch.uint8)
    if outer is None:
        outer = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
        by_row = outer
    else:
        by_row = outer.expand(*x.shape[:-1], 1).contiguous()
    if x.numel():
        held = max(triton.next_power_of_2(width), nvfp4.BLOCK)
        with on_device(x):
            _quantise_rows[(x.numel() // width,)](
                values,
                beside,
                codes,
                scales,
                by_row,
                width,
                FOUR=four,
                GIVEN=given,
                SWIGLU=up is not None,
                HELD=held,
                num_warps=min(8, max(1, held // 1024)),
                enable_fp_fusion=False,
            )
    if four:
        return NVFP4(codes, scales.view(torch.float8_e4m3fn), outer)
    return RowFP8(codes.view(torch.float8_e4m3fn), scales)


def _given(x: Tensor, up: Tensor | None, block: int, format: str) -> tuple[Tensor, Tensor]:
    """Check that a kernel can quantise x or, if `up` is given, silu(x) * up. Return x and `up` with their bits as
    integers; without `up`, x stands in its place."""
    if up is not None and (x.dtype != torch.bfloat16 or up.dtype != torch.bfloat16 or up.shape != x.shape):
        raise CannotQuantise(
            f"SwiGLU takes two bf16 tensors of one shape, not {_description(x)} and {_description(up)}"
        )
    if x.dtype == torch.float16:
        raise CannotQuantise(f"{format}: the kernels take bfloat16 and float32, not float16")
    values = words(rows_of(x, block, format))
    return values, values if up is None else words(rows_of(up, block, format))


def _description(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def _empty(x: Tensor, shape: list[int], tiling: Tiling) -> Quantised:
    *leading, height, width = shape
    codes = x.new_empty(shape, dtype=torch.float8_e4m3fn)
    if tiling.mx:
        return MXFP8(codes, x.new_empty(*leading, height, width // tiling.wide, dtype=torch.uint8))
    count = (triton.cdiv(height, tiling.tall), triton.cdiv(width, tiling.wide))
    return BlockFP8(codes, x.new_empty(*leading, *count, dtype=torch.float32), tiling.tall)


@triton.jit
def _numbers(x, up, at, inside, SWIGLU: tl.constexpr):
    """Load x at offsets `at` as fp32, 0 where not `inside`; with SWIGLU, return silu(x) * up."""
    values = wide(tl.load(x + at, inside, 0))
    if SWIGLU:
        values = swiglu(values, wide(tl.load(up + at, inside, 0)))
    return values


@triton.jit
def _blocks(values, TALL: tl.constexpr, WIDE: tl.constexpr, MX: tl.constexpr):
    """Quantise a tile [h, w] to E4M3 codes and scales [h / TALL, w / WIDE]: E8M0 codes with MX, else fp32."""
    height: tl.constexpr = values.shape[0] // TALL
    width: tl.constexpr = values.shape[1] // WIDE
    parts = tl.reshape(values, (height, TALL, width, WIDE))
    largest = magnitudes(parts)
    if WIDE > 1:
        largest = tl.max(largest, 3, keep_dims=True)
    if TALL > 1:
        largest = tl.max(largest, 1, keep_dims=True)
    if MX:
        scales = e8m0_not_below(largest)
        parts = parts * reciprocal_of_e8m0(scales)
    else:
        scales = scale_for(largest, 448.0, SMALLEST_FP8_SCALE)
        parts = tl.div_rn(parts, scales)
    return tl.reshape(e4m3_codes(parts), values.shape), tl.reshape(scales, (height, width))


@triton.jit
def _quantise_tiles(
    x,
    up,
    codes,
    scales,
    turned,
    turned_scales,
    height,
    width,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    MX: tl.constexpr,
    SWIGLU: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    across = tl.cdiv(width, TILE_COLUMNS)
    top, left = tl.program_id(0) // across, tl.program_id(0) % across
    matrix = tl.program_id(1).to(tl.int64)
    row = (top * TILE_ROWS + tl.arange(0, TILE_ROWS)).to(tl.int64)
    column = left * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    first = matrix * height * width
    inside = (row[:, None] < height) & (column[None, :] < width)
    at = first + row[:, None] * width + column[None, :]
    values = _numbers(x, up, at, inside, SWIGLU)
    found, scale = _blocks(values, TALL, WIDE, MX)
    tl.store(codes + at, found, inside)
    _store_scales(scales, scale, matrix, top, left, tl.cdiv(height, TALL), tl.cdiv(width, WIDE))
    if COLUMNS:
        found, scale = _blocks(values, WIDE, TALL, MX)
        turned_at = first + column[:, None].to(tl.int64) * height + row[None, :]
        tl.store(turned + turned_at, tl.trans(found), (column[:, None] < width) & (row[None, :] < height))
        _store_scales(turned_scales, tl.trans(scale), matrix, left, top, tl.cdiv(width, TALL), tl.cdiv(height, WIDE))


@triton.jit
def _store_scales(scales, scale, matrix, top, left, height, width):
    row = (top * scale.shape[0] + tl.arange(0, scale.shape[0])).to(tl.int64)
    column = left * scale.shape[1] + tl.arange(0, scale.shape[1])
    at = (matrix * height + row[:, None]) * width + column[None, :]
    tl.store(scales + at, scale.to(scales.dtype.element_ty), (row[:, None] < height) & (column[None, :] < width))


@triton.jit
def _quantise_rows(
    x,
    up,
    codes,
    scales,
    outers,
    width,
    FOUR: tl.constexpr,
    GIVEN: tl.constexpr,
    SWIGLU: tl.constexpr,
    HELD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HELD)
    values = _numbers(x, up, row * width + column, column < width, SWIGLU)
    if FOUR:
        blocks = tl.reshape(values, (HELD // 16, 16))
        largest = tl.max(magnitudes(blocks), 1, keep_dims=True)
        if GIVEN:
            outer = tl.load(outers + row)
        else:
            outer = scale_for(tl.max(largest), 2688.0, SMALLEST_OUTER)
            tl.store(outers + row, outer)
        wanted = tl.div_rn(tl.div_rn(largest.to(tl.float32, bitcast=True), 6.0), outer)
        scale = e4m3_codes(tl.where(wanted != wanted, wanted, tl.minimum(tl.maximum(wanted, 2.0**-6), 448.0))) & 0x7F
        found = e2m1_codes(tl.div_rn(blocks, normal_e4m3(scale) * outer))
        found = tl.where(scale == 0x7F, 0, found)
        low, high = tl.split(tl.reshape(found, (HELD // 2, 2)))
        pair = tl.arange(0, HELD // 2)
        tl.store(codes + row * (width // 2) + pair, (low | (high << 4)).to(tl.uint8), pair < width // 2)
        block = tl.arange(0, HELD // 16)
        tl.store(scales + row * (width // 16) + block, tl.reshape(scale, (HELD // 16,)), block < width // 16)
    else:
        scale = scale_for(tl.max(magnitudes(values)), 448.0, SMALLEST_FP8_SCALE)
        tl.store(scales + row, scale)
        tl.store(codes + row * width + column, e4m3_codes(tl.div_rn(values, scale)), column < width)
