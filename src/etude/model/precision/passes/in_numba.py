"""Quantising and dequantising loops that Numba compiles for this CPU on first use and caches on disk.

Numbers are read and written as integer words with the same bits: 4 bytes for fp32, 2 bytes for bf16, which are the
upper half of the same number in fp32. The loops run over rows, blocks of a row, and numbers of a block. Arithmetic is
IEEE, without fast-math: no division is replaced by a multiplication with the reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.model.precision.elements import E2M1, E4M3, Element
from etude.model.precision.passes import RoundingScales

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

_WORDS = {torch.bfloat16: torch.uint16, torch.float32: torch.uint32, torch.float8_e4m3fn: torch.uint8}
_EXPONENT, _MANTISSA, _MAGNITUDE, _NAN = (np.uint32(x) for x in (0x7F800000, 0x007FFFFF, 0x7FFFFFFF, 0x7FC00000))


def _loop(function: Function) -> Function:
    compiled = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return cast(Function, compiled(cache=True)(function))
    except RuntimeError:  # neither the package's folder nor the home is writable: each process compiles for itself
        return cast(Function, compiled()(function))


def _constants(element: Element, magnitude_bits: int) -> tuple[np.uint32, ...]:
    """Return the constants of an element type for `_code` and `_value`: shifts from its mantissa and from its sign bit
    to those of fp32, and the fp32 bits of its smallest normal and of its largest magnitude."""
    least, most = np.array([element.smallest_normal, element.largest], np.float32).view(np.uint32)
    return np.uint32(23 - element.mantissa_bits), np.uint32(31 - magnitude_bits), least, most


_E4M3, _E2M1 = _constants(E4M3, 7), _constants(E2M1, 3)
_E4M3_NAN = np.uint32(0x7F)


def by() -> str:
    return f"loops of Numba {numba.__version__}"


def largest(rows: Tensor, block: int) -> Tensor:
    rows = _readable(rows)
    found = rows.new_empty(rows.shape[0], rows.shape[1] // block)
    _largest(_words(rows, found), _words(found, found)[..., 0])
    return found.float()


def encode_e4m3(rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
    codes = torch.empty(rows.shape, dtype=torch.float8_e4m3fn)
    _encode_e4m3(_words(_readable(rows), scales), scales.numpy(), divide, _words(codes, scales))
    return codes


def encode_e2m1(rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
    packed = torch.empty(rows.shape[0], rows.shape[1] // 2, dtype=torch.uint8)
    _encode_e2m1(_words(_readable(rows), scales), scales.numpy(), divide, packed.numpy())
    return packed


def round_to(rows: Tensor, element: Element, by: RoundingScales, dtype: torch.dtype, *, divide: bool) -> Tensor:
    out = torch.empty(rows.shape, dtype=_writable(dtype))
    grid = np.array([1.5 * element.magic, element.smallest_normal, element.largest], np.float32)
    given = (_words(_readable(rows), by.scales), by.scales.numpy(), divide, grid)
    _round_to(*given, by.back.numpy(), _by_row(by.outer, rows), _words(out, by.scales))
    return out.to(dtype)


def decode_e4m3(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(codes.shape, dtype=_writable(dtype))
    _decode_e4m3(_words(codes, scales), scales.numpy(), _words(out, scales))
    return out.to(dtype)


def decode_e2m1(packed: Tensor, scales: Tensor, outer: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(packed.shape[0], 2 * packed.shape[1], dtype=_writable(dtype))
    _decode_e2m1(_words(packed, scales), scales.numpy(), _by_row(outer, packed), _words(out, scales))
    return out.to(dtype)


def _readable(rows: Tensor) -> Tensor:
    return rows if rows.dtype in _WORDS else rows.float()


def _writable(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in _WORDS else torch.float32


def _words(x: Tensor, scales: Tensor) -> Array:
    """View x, [N, K], as integer words [N, blocks, width], with one block for each of the scales [N, blocks]."""
    words: Array = x.view(_WORDS.get(x.dtype, x.dtype)).numpy()
    return words.reshape(*scales.shape, x.shape[1] // scales.shape[1])


def _by_row(outer: Tensor | None, rows: Tensor) -> Array:
    by: Array = np.ones(rows.shape[0], np.float32) if outer is None else outer.flatten().numpy()
    return by


@_loop
def _bits(value: Any) -> Any:
    return np.float32(value).view(np.uint32)


@_loop
def _float(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)


@_loop
def _scaled(word: Any, size: int, scale: Any, divide: bool) -> Any:
    """Convert a word of `size` bytes (fp32 or bf16) to its number, divided by the scale (`divide`) or multiplied."""
    value = _float(np.uint32(word) << np.uint32(8 * (4 - size)))
    return np.float32(value / scale) if divide else np.float32(value * scale)


@_loop
def _written(value: Any, size: int) -> Any:
    """Return a number as a word of `size` bytes: its fp32 bits, or those of its nearest bf16, ties to even."""
    bits = _bits(value)
    if size == 4:
        return bits
    nearest = np.uint32(bits + np.uint32(0x7FFF) + (np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint32((_NAN if value != value else nearest) >> np.uint32(16))


@_loop
def _code(value: Any, element: Any) -> Any:
    """Return the code of the element type's number that is nearest to `value`, saturating.

    To round, a power of two is added to the magnitude, so large that the sum's last fp32 bit has the weight of the
    element's last mantissa bit. So the addition rounds, and the sum ends with the last bits of the code.
    """
    below, sign_below, least, most = element
    bits = _bits(value)
    magnitude = np.uint32(min(np.uint32(bits & _MAGNITUDE), most))
    power = np.uint32(max(np.uint32(magnitude & _EXPONENT), least))
    total = np.float32(_float(magnitude) + _float(power + np.uint32(below << np.uint32(23))))
    code = np.uint32((_bits(total) & _MANTISSA) + (np.uint32(power - least) >> below))
    return np.uint8(code | (np.uint32(bits >> sign_below) & (np.uint32(1) << (np.uint32(31) - sign_below))))


@_loop
def _value(code: Any, element: Any) -> Any:
    """Return the number of a code: its bits shifted into fp32, times a power of two that corrects the exponent bias."""
    below, sign_below, least, _ = element
    sign = np.uint32(np.uint32(1) << (np.uint32(31) - sign_below))
    magnitude = np.uint32(np.uint32(code) & np.uint32(sign - np.uint32(1)))
    value = np.float32(_float(magnitude << below) * _float(least + np.uint32(126 << 23)))
    bits = _NAN if magnitude == _E4M3_NAN else _bits(value)  # no E2M1 code is that large
    return _float(bits | np.uint32((np.uint32(code) & sign) << sign_below))


@_loop
def _largest(x: Array, found: Array) -> None:
    """Write the largest magnitude in each block of `x` to `found`. Both hold floating-point numbers as integers with
    the same bits. Without the sign bit, such integers sort as the magnitudes do, followed by infinity and then NaN."""
    word = x.dtype.type
    magnitude = word((1 << (8 * x.itemsize - 1)) - 1)
    rows, blocks, width = x.shape
    for row in range(rows):
        for block in range(blocks):
            most = word(0)
            for i in range(width):
                most = max(most, word(x[row, block, i] & magnitude))
            found[row, block] = most


@_loop
def _encode_e4m3(x: Array, scales: Array, divide: bool, codes: Array) -> None:
    rows, blocks, width = x.shape
    for row in range(rows):
        for block in range(blocks):
            scale = scales[row, block]
            for i in range(width):
                codes[row, block, i] = _code(_scaled(x[row, block, i], x.itemsize, scale, divide), _E4M3)


@_loop
def _encode_e2m1(x: Array, scales: Array, divide: bool, packed: Array) -> None:
    rows, blocks, width = x.shape
    codes = np.empty((blocks, width), np.uint8)
    pairs = codes.reshape(-1, 2)
    for row in range(rows):
        for block in range(blocks):
            scale = scales[row, block]
            for i in range(width):
                codes[block, i] = _code(_scaled(x[row, block, i], x.itemsize, scale, divide), _E2M1)
        for i in range(len(pairs)):
            packed[row, i] = pairs[i, 0] | (pairs[i, 1] << np.uint8(4))


@_loop
def _round_to(x: Array, scales: Array, divide: bool, grid: Array, back: Array, outer: Array, out: Array) -> None:
    rows, blocks, width = x.shape
    magic, smallest, most = grid
    for row in range(rows):
        by = outer[row]
        for block in range(blocks):
            scale, unscale = scales[row, block], back[row, block]
            for i in range(width):
                value = _scaled(x[row, block, i], x.itemsize, scale, divide)
                value = np.float32(max(min(value, most), np.float32(-most)))
                power = max(_float(np.uint32(_bits(value) & _EXPONENT)), smallest)
                shift = np.float32(power * magic)
                rounded = np.float32(np.float32(value + shift) - shift)
                out[row, block, i] = _written(np.float32(np.float32(rounded * unscale) * by), out.itemsize)


@_loop
def _decode_e4m3(codes: Array, scales: Array, out: Array) -> None:
    rows, blocks, width = codes.shape
    for row in range(rows):
        for block in range(blocks):
            scale = scales[row, block]
            for i in range(width):
                value = _value(codes[row, block, i], _E4M3)
                out[row, block, i] = _written(np.float32(value * scale), out.itemsize)


@_loop
def _decode_e2m1(packed: Array, scales: Array, outer: Array, out: Array) -> None:
    rows, blocks, width = packed.shape
    for row in range(rows):
        by = outer[row]
        for block in range(blocks):
            scale = scales[row, block]
            for i in range(width):
                for half in range(2):
                    code = np.uint8((packed[row, block, i] >> np.uint8(4 * half)) & np.uint8(15))
                    value = _value(code, _E2M1)
                    out[row, block, 2 * i + half] = _written(np.float32(np.float32(value * scale) * by), out.itemsize)
