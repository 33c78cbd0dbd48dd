"""Grouped matmuls with unequal numbers of rows per expert, in Triton.

`grouped_mm` computes the forward pass and the gradient of the input (dgrad): rows [R, K] times the experts' weights [E,
N, K]. `grouped_wgrad` computes the gradient of the weights and contracts over each expert's rows; its operands in
quantised formats are quantised along the tokens.

Programs are persistent: as many as fit on the device, each processing several tiles. Tiles are ordered so that those
computed at the same time share rows and weights. The number of tiles per expert is computed on the device, so the CPU
does not wait for the GPU. Operands are loaded through tensor descriptors, which on Hopper are bulk copies that feed
wgmma.

Scales are applied as follows:
- `bf16`: no scales.
- `fp8_row`: one scale per row and one per column, multiplied after the sum.
- `fp8_block`: 1 x 128 blocks by 128 x 128 blocks. The partial sum of every 128 products is scaled and added in fp32,
  because the tensor cores' FP8 accumulators have few bits.
- `fp8_tile` (wgrad only): 1 x 128 blocks by 1 x 128 blocks, in the same way.
- `mxfp8`: codes times scales are exact in bf16, and are multiplied in bf16. Without block-scaled tensor cores there is
  no cheaper way to apply one scale per 32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.model.errors import CannotQuantise
from etude.model.precision.formats import Quantised
from etude.model.precision.fp8 import BlockFP8, RowFP8
from etude.model.precision.kernels.in_triton.bits import COMPILED, bf16_words, power_of_e8m0, wide
from etude.model.precision.kernels.in_triton.launch import on_device, words
from etude.model.precision.mxfp8 import MXFP8

FEWEST_EXPERTS = 64
"""Minimum of `EXPERTS`, the compile-time bound on the number of experts: most models then share one compiled kernel."""


def _config(
    m: int, n: int, k: int, stages: int, warps: int, *, per_sm: int = 1, flatten: bool = False
) -> triton.Config:
    meta = {"TILE_M": m, "TILE_N": n, "TILE_K": k, "FLATTEN": flatten, "PER_SM": per_sm}
    return triton.Config(meta, num_stages=stages, num_warps=warps)


# FP8 needs two accumulators per tile, so its tiles are half as large.
CONFIGS = {
    "bf16": [
        _config(128, 256, 64, 4, 8),
        _config(128, 256, 64, 3, 8, flatten=True),
        _config(128, 128, 64, 3, 4, per_sm=2),
    ],
    "fp8_row": [_config(128, 128, 128, 4, 8), _config(128, 256, 128, 3, 16), _config(64, 128, 128, 3, 4, per_sm=2)],
    "fp8_block": [_config(128, 128, 128, 4, 8), _config(64, 128, 128, 3, 4, per_sm=2)],
    "mxfp8": [_config(128, 128, 64, 3, 8), _config(64, 128, 64, 3, 4, per_sm=2)],
    "wgrad bf16": [_config(128, 256, 64, 3, 8), _config(128, 128, 64, 3, 4, per_sm=2)],
    "wgrad fp8_tile": [_config(128, 128, 128, 4, 8), _config(64, 128, 128, 3, 4, per_sm=2)],
    "wgrad mxfp8": [_config(128, 128, 64, 3, 8), _config(64, 128, 64, 3, 4, per_sm=2)],
}
# Small tiles, so that small tests have several tiles and incomplete ones.
_DEPTHS = {"bf16": 64, "fp8_row": 64, "fp8_block": 128, "mxfp8": 64}
_DEPTHS |= {"wgrad bf16": 16, "wgrad fp8_tile": 128, "wgrad mxfp8": 64}
INTERPRETED = {
    kind: {"TILE_M": 16, "TILE_N": 32, "TILE_K": depth, "FLATTEN": False, "PER_SM": 1}
    for kind, depth in _DEPTHS.items()
}


def grouped_mm(a: Tensor | Quantised, b: Tensor | Quantised, ends_e: Tensor) -> Tensor:
    """Multiply rows [R, K] by their expert's weights [E, N, K] to bf16 [R, N]; both operands contract their last axis.

    Expert e has the rows from ends_e[e - 1] (0 for the first expert) to ends_e[e]. Rows after those of the last expert
    are not written. bf16 weights may be the transpose of a contiguous tensor (as in dgrad).
    """
    kind, a_codes, a_scales, b_codes, b_scales = _operands(a, b)
    rows, inner = a_codes.shape
    experts, columns, _ = b_codes.shape
    turned = not b_codes.is_contiguous()
    if turned and (kind != "bf16" or not b_codes.mT.is_contiguous() or inner % 64):
        raise CannotQuantise(
            "the experts' weights must be contiguous; in bf16 their transpose may be contiguous instead, if K is a "
            "multiple of 64"
        )
    for name, stride in (("a", inner), ("b", columns if turned else inner)):
        if stride * a_codes.element_size() % 16:
            raise CannotQuantise(f"{name} has rows of {stride} numbers, which are not a multiple of 16 bytes")
    if b_codes.shape[2] != inner or ends_e.numel() != experts:
        shapes = f"{tuple(a_codes.shape)}, {tuple(b_codes.shape)} and {tuple(ends_e.shape)}"
        raise CannotQuantise(f"expected rows [R, K], weights [E, N, K] and ends [E]; found the shapes {shapes}")
    out = a_codes.new_empty(rows, columns, dtype=torch.bfloat16)
    if not rows:
        return out
    _launch(
        _grouped_mm,
        kind,
        a_codes,
        a_codes.contiguous(),
        b_codes,
        words(out),
        a_scales.contiguous(),
        b_scales if turned else b_scales.contiguous(),
        ends_e.int(),
        rows,
        columns,
        inner,
        experts,
        KIND=kind,
        TURNED=turned,
        EXPERTS=max(FEWEST_EXPERTS, triton.next_power_of_2(experts)),
    )
    return out


def grouped_wgrad(a: Tensor | Quantised, b: Tensor | Quantised, ends_e: Tensor) -> Tensor:
    """Multiply `a` [M, R] by the transpose of `b` [N, R] over each expert's rows separately: bf16 [E, M, N], zero for
    an expert without rows.

    bf16 operands that are not transposes of contiguous rows are copied first. In quantised operands the number of an
    expert's rows must be a multiple of the block size.
    """
    match a, b:
        case Tensor(), Tensor():
            return _wgrad_of_bf16(a.mT.contiguous(), b.mT.contiguous(), ends_e)
        case BlockFP8(rows=1), BlockFP8(rows=1):
            return _wgrad_of_codes("fp8_tile", a, b, ends_e)
        case MXFP8(), MXFP8():
            return _wgrad_of_codes("mxfp8", a, b, ends_e)
    raise CannotQuantise(
        f"no kernel computes a weight gradient of {_description(a)} by {_description(b)}; both operands must be "
        "bf16, both MXFP8, or both BlockFP8 with blocks of 1 row"
    )


def _wgrad_of_bf16(left: Tensor, right: Tensor, ends_e: Tensor) -> Tensor:
    rows, height = left.shape
    width, experts = right.shape[1], ends_e.numel()
    for stride in (height, width):
        if left.dtype != torch.bfloat16 or right.dtype != torch.bfloat16 or stride % 8:
            raise CannotQuantise(
                f"wgrad takes bf16 rows of a multiple of 16 bytes, not {left.dtype} rows of {stride} numbers"
            )
    out = left.new_empty(experts, height, width)
    if not rows:
        return out.zero_()
    _launch(_grouped_wgrad, "wgrad bf16", left, left, right, words(out), ends_e.int(), rows, height, width, experts)
    return out


def _wgrad_of_codes(kind: str, a: BlockFP8 | MXFP8, b: BlockFP8 | MXFP8, ends_e: Tensor) -> Tensor:
    (height, rows), width, experts = a.codes.shape, b.codes.shape[0], ends_e.numel()
    if rows % 16 or b.codes.shape[1] != rows:
        raise CannotQuantise(
            f"wgrad takes codes [M, R] and [N, R], R a multiple of 16, not {tuple(a.codes.shape)} and "
            f"{tuple(b.codes.shape)}"
        )
    out = a.codes.new_empty(experts, height, width, dtype=torch.bfloat16)
    if not rows:
        return out.zero_()
    _launch(
        _grouped_wgrad_of_codes,
        f"wgrad {kind}",
        a.codes,
        a.codes.contiguous(),
        b.codes.contiguous(),
        words(out),
        a.scales.contiguous(),
        b.scales.contiguous(),
        ends_e.int(),
        rows,
        height,
        width,
        experts,
        KIND=kind,
    )
    return out


def _operands(a: Tensor | Quantised, b: Tensor | Quantised) -> tuple[str, Tensor, Tensor, Tensor, Tensor]:
    """Return the kind of kernel, then codes and scales of a and of b. A bf16 operand is returned in place of both."""
    match a, b:
        case Tensor(), Tensor() if a.dtype == b.dtype == torch.bfloat16:
            return "bf16", a, a, b, b
        case RowFP8(), RowFP8():
            return "fp8_row", a.codes, a.scales, b.codes, b.scales
        case BlockFP8(rows=1), BlockFP8(rows=128):
            return "fp8_block", a.codes, a.scales, b.codes, b.scales
        case MXFP8(), MXFP8():
            return "mxfp8", a.codes, a.scales, b.codes, b.scales
    raise CannotQuantise(
        f"no kernel multiplies {_description(a)} by {_description(b)}; both operands must be bf16, both RowFP8 or "
        "both MXFP8, or BlockFP8 with blocks of 1 row by BlockFP8 with blocks of 128 rows"
    )


def _description(x: Tensor | Quantised) -> str:
    return str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else type(x).__name__


def _launch(kernel: Any, kind: str, like: Tensor, *args: Any, **meta: Any) -> None:
    if not COMPILED.value:
        kernel[(2,)](*args, **meta, **INTERPRETED[kind])
        return
    with on_device(like):
        triton.set_allocator(_workspace(like.device))
        at_once = torch.cuda.get_device_properties(like.device).multi_processor_count
        _tuned(kernel, kind)[lambda chosen: (at_once * chosen["PER_SM"],)](*args, **meta)


@cache
def _tuned(kernel: Any, kind: str) -> Any:
    """Return the kernel with autotuning, which times all tile configurations at the first call with new matrix sizes
    (`columns`, `inner`) or with weights stored the other way round (`TURNED`)."""
    return triton.autotune(CONFIGS[kind], key=["columns", "inner", "TURNED"])(kernel)


@cache
def _workspace(device: torch.device) -> Callable[[int, int, int | None], Tensor]:
    """Return the allocator with which Triton gets memory for tensor descriptors."""
    return lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device)


@triton.jit
def _operand(x):
    """Return x as operand for tl.dot: in Triton's interpreter, which stores bf16 as integers, widened to fp32."""
    if COMPILED or x.dtype != tl.bfloat16:
        return x
    else:
        return wide(x.to(tl.int16, bitcast=True))


@triton.jit
def _times_powers(codes, scales):
    """Return E4M3 codes [m, k] times E8M0 scales [m, k / 32] in bf16, exact except for subnormals of bf16."""
    parts = tl.reshape(codes.to(tl.float32), (codes.shape[0], scales.shape[1], 32))
    values = tl.reshape(parts * tl.expand_dims(power_of_e8m0(scales), 2), codes.shape)
    if COMPILED:
        return values.to(tl.bfloat16)
    else:
        return values


@triton.jit
def _grouped_mm(
    a,
    b,
    out,
    a_scales,
    b_scales,
    ends,
    rows,
    columns,
    inner,
    experts,
    KIND: tl.constexpr,
    TURNED: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    FLATTEN: tl.constexpr,
    PER_SM: tl.constexpr,
):
    each = tl.arange(0, EXPERTS)
    end_e = tl.load(ends + each, each < experts, 0)
    start_e = tl.load(ends + each - 1, (each > 0) & (each < experts), 0)
    tile_columns = tl.cdiv(columns, TILE_N)
    tiles_e = tl.where(each < experts, tl.cdiv(end_e - start_e, TILE_M), 0) * tile_columns
    until_e = tl.cumsum(tiles_e)
    a_rows = tl.make_tensor_descriptor(a, [rows, inner], [inner, 1], [TILE_M, TILE_K])
    if TURNED:
        b_rows = tl.make_tensor_descriptor(b, [experts * inner, columns], [columns, 1], [TILE_K, TILE_N])
    else:
        b_rows = tl.make_tensor_descriptor(b, [experts * columns, inner], [inner, 1], [TILE_N, TILE_K])
    for tile in tl.range(tl.program_id(0), tl.sum(tiles_e), tl.num_programs(0), flatten=FLATTEN):
        expert = tl.sum((until_e <= tile).to(tl.int32))
        start, end = tl.load(ends + expert - 1, expert > 0, 0), tl.load(ends + expert)
        tile_of_expert = tile - tl.sum(tl.where(each < expert, tiles_e, 0))
        top, left = _tile_position(tile_of_expert, tl.cdiv(end - start, TILE_M), tile_columns)
        top, left = start + top * TILE_M, left * TILE_N
        row, column = top + tl.arange(0, TILE_M), left + tl.arange(0, TILE_N)
        total = tl.zeros((TILE_M, TILE_N), tl.float32)
        for k in tl.range(0, inner, TILE_K):
            a_mk = a_rows.load([top, k])
            if TURNED:
                b_kn = b_rows.load([expert * inner + k, left])
            else:
                b_kn = b_rows.load([expert * columns + left, k]).T
            if KIND == "fp8_block":
                blocks = tl.cdiv(inner, 128)
                a_scale = tl.load(a_scales + row * blocks + k // 128, row < end, 0)
                b_row = expert * tl.cdiv(columns, 128) + left // 128
                b_scale = tl.load(b_scales + b_row * blocks + k // 128)
                total += tl.dot(a_mk, b_kn) * (a_scale * b_scale)[:, None]
            elif KIND == "mxfp8":
                block = k // 32 + tl.arange(0, TILE_K // 32)
                filled = block[None, :] < inner // 32
                a_at, b_at = row[:, None] * (inner // 32), (expert * columns + column)[:, None] * (inner // 32)
                a_scale = tl.load(a_scales + a_at + block[None, :], filled & (row[:, None] < end), 0)
                b_scale = tl.load(b_scales + b_at + block[None, :], filled & (column[:, None] < columns), 0)
                total = tl.dot(_times_powers(a_mk, a_scale), _times_powers(b_kn.T, b_scale).T, total)
            else:
                # FP8: after every TILE_K products the tensor cores' accumulators are added to the fp32 sum.
                total = tl.dot(_operand(a_mk), _operand(b_kn), total, max_num_imprecise_acc=TILE_K)
        if KIND == "fp8_row":
            a_scale = tl.load(a_scales + row, row < end, 0)
            b_scale = tl.load(b_scales + expert * columns + column, column < columns, 0)
            total = total * a_scale[:, None] * b_scale[None, :]
        at = row[:, None].to(tl.int64) * columns + column[None, :]
        tl.store(out + at, bf16_words(total), (row[:, None] < end) & (column[None, :] < columns))


@triton.jit
def _tile_position(tile, tile_rows, tile_columns):
    """Return the position of a tile in a grid of tile_rows x tile_columns, numbered in bands of 8 rows, column by
    column, so that tiles with adjacent numbers share rows and weights in the cache."""
    band = tile // (8 * tile_columns) * 8
    band_rows = tl.minimum(tile_rows - band, 8)
    within = tile - band * tile_columns
    return band + within % band_rows, within // band_rows


@triton.jit
def _grouped_wgrad(
    a,
    b,
    out,
    ends,
    rows,
    inner,
    columns,
    experts,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    FLATTEN: tl.constexpr,
    PER_SM: tl.constexpr,
):
    tile_columns = tl.cdiv(columns, TILE_N)
    tile_rows = tl.cdiv(inner, TILE_M)
    a_rows = tl.make_tensor_descriptor(a, [rows, inner], [inner, 1], [TILE_K, TILE_M])
    b_rows = tl.make_tensor_descriptor(b, [rows, columns], [columns, 1], [TILE_K, TILE_N])
    for tile in tl.range(tl.program_id(0), experts * tile_rows * tile_columns, tl.num_programs(0), flatten=FLATTEN):
        expert = tile // (tile_rows * tile_columns)
        start, end = tl.load(ends + expert - 1, expert > 0, 0), tl.load(ends + expert)
        top, left = _tile_position(tile % (tile_rows * tile_columns), tile_rows, tile_columns)
        top, left = top * TILE_M, left * TILE_N
        total = tl.zeros((TILE_M, TILE_N), tl.float32)
        whole = start + (end - start) // TILE_K * TILE_K
        for k in tl.range(start, whole, TILE_K):
            total = tl.dot(_operand(a_rows.load([k, top])).T, _operand(b_rows.load([k, left])), total)
        if whole < end:
            # Rows beyond the expert's end belong to another expert.
            mine = (whole + tl.arange(0, TILE_K) < end)[:, None]
            a_km = tl.where(mine, _operand(a_rows.load([whole, top])), 0.0)
            b_kn = tl.where(mine, _operand(b_rows.load([whole, left])), 0.0)
            total = tl.dot(a_km.T, b_kn, total)
        row, column = top + tl.arange(0, TILE_M), left + tl.arange(0, TILE_N)
        at = (expert.to(tl.int64) * inner + row[:, None]) * columns + column[None, :]
        tl.store(out + at, bf16_words(total), (row[:, None] < inner) & (column[None, :] < columns))


@triton.jit
def _grouped_wgrad_of_codes(
    a,
    b,
    out,
    a_scales,
    b_scales,
    ends,
    rows,
    inner,
    columns,
    experts,
    KIND: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    FLATTEN: tl.constexpr,
    PER_SM: tl.constexpr,
):
    tile_columns = tl.cdiv(columns, TILE_N)
    tile_rows = tl.cdiv(inner, TILE_M)
    a_rows = tl.make_tensor_descriptor(a, [inner, rows], [rows, 1], [TILE_M, TILE_K])
    b_rows = tl.make_tensor_descriptor(b, [columns, rows], [rows, 1], [TILE_N, TILE_K])
    for tile in tl.range(tl.program_id(0), experts * tile_rows * tile_columns, tl.num_programs(0), flatten=FLATTEN):
        expert = tile // (tile_rows * tile_columns)
        start, end = tl.load(ends + expert - 1, expert > 0, 0), tl.load(ends + expert)
        top, left = _tile_position(tile % (tile_rows * tile_columns), tile_rows, tile_columns)
        top, left = top * TILE_M, left * TILE_N
        row, column = top + tl.arange(0, TILE_M), left + tl.arange(0, TILE_N)
        total = tl.zeros((TILE_M, TILE_N), tl.float32)
        for k in tl.range(start, end, TILE_K):
            a_mk, b_nk = a_rows.load([top, k]), b_rows.load([left, k])
            if KIND == "fp8_tile":
                blocks = tl.cdiv(rows, 128)
                a_scale = tl.load(a_scales + row * blocks + k // 128, row < inner, 0)
                b_scale = tl.load(b_scales + column * blocks + k // 128, column < columns, 0)
                total += tl.dot(a_mk, b_nk.T) * a_scale[:, None] * b_scale[None, :]
            else:
                # A tile may include blocks of the next expert, which may contain NaN.
                mine = (k + tl.arange(0, TILE_K) < end)[None, :]
                block = k // 32 + tl.arange(0, TILE_K // 32)
                filled = block[None, :] < end // 32
                a_at, b_at = (
                    row[:, None] * (rows // 32) + block[None, :],
                    column[:, None] * (rows // 32) + block[None, :],
                )
                a_scale = tl.load(a_scales + a_at, filled & (row[:, None] < inner), 0)
                b_scale = tl.load(b_scales + b_at, filled & (column[:, None] < columns), 0)
                a_mk = tl.where(mine, _times_powers(a_mk, a_scale), 0.0)
                b_nk = tl.where(mine, _times_powers(b_nk, b_scale), 0.0)
                total = tl.dot(a_mk, b_nk.T, total)
        at = (expert.to(tl.int64) * inner + row[:, None]) * columns + column[None, :]
        tl.store(out + at, bf16_words(total), (row[:, None] < inner) & (column[None, :] < columns))
