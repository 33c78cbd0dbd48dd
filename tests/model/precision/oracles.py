"""What the formats are held against: `ml_dtypes`, `torchao`, and rounding written down in fractions.

The last one knows nothing of bits: it lists an element's values and takes the nearest.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from etude.model.precision.elements import Element

__all__ = [
    "ADVERSARIAL",
    "bits_of",
    "choose_scale_float8",
    "e2m1_there",
    "e4m3_there",
    "every_bf16",
    "exact_codes",
    "nvfp4_quantize",
    "per_tensor_amax_to_scale",
    "quantize_affine_float8",
    "random_rows",
    "tensors",
    "to_mxfp8",
]


@cache
def _torchao(module: str) -> ModuleType:
    """Loaded when it is first asked: that takes seconds, and most tests that are collected never ask."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of its compiled parts, which no CPU needs
    try:
        return import_module(f"torchao.{module}")
    finally:
        logging.disable(before)


def nvfp4_quantize(*args: Any, **kwargs: Any) -> Any:
    return _torchao("prototype.mx_formats.nvfp4_tensor").nvfp4_quantize(*args, **kwargs)


def per_tensor_amax_to_scale(*args: Any, **kwargs: Any) -> Any:
    return _torchao("prototype.mx_formats.nvfp4_tensor").per_tensor_amax_to_scale(*args, **kwargs)


def choose_scale_float8(*args: Any, **kwargs: Any) -> Any:
    return _torchao("quantization.quant_primitives")._choose_scale_float8(*args, **kwargs)


def quantize_affine_float8(*args: Any, **kwargs: Any) -> Any:
    return _torchao("quantization.quant_primitives")._quantize_affine_float8(*args, **kwargs)


def to_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """torchao's: uint8 scales and codes. Its default rounds scales down; RCEIL is the mode that rounds them up."""
    rounding_up = _torchao("prototype.mx_formats.config").ScaleCalculationMode.RCEIL
    scales, codes = _torchao("prototype.mx_formats.mx_tensor").to_mx(x, torch.float8_e4m3fn, 32, rounding_up)
    return scales.view(torch.uint8).view(*x.shape[:-1], -1), codes.view(torch.uint8)


def e4m3_there(values: Tensor) -> Tensor:
    """uint8 codes by ml_dtypes, which does not saturate by itself."""
    clipped = np.clip(values.float().numpy(), -448, 448)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def e2m1_there(values: Tensor) -> Tensor:
    clipped = np.clip(values.float().numpy(), -6, 6)
    return torch.from_numpy(clipped.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


@cache
def _values_of(element: Element) -> list[Fraction]:
    """The magnitudes in the order of their codes: subnormals, then binade by binade."""
    steps, least = 2**element.mantissa_bits, Fraction(element.smallest_normal)
    values = [least * step / steps for step in range(steps)]
    binade = least
    while binade <= element.largest:
        values += [binade * (steps + step) / steps for step in range(steps)]
        binade *= 2
    return [value for value in values if value <= element.largest]


def exact_codes(values: list[Fraction], element: Element) -> list[int]:
    """Codes of magnitudes: the nearest value, of two as near the one with the even code."""
    known, codes = _values_of(element), []
    for value in values:
        above = bisect_left(known, value)
        if above == len(known):
            codes.append(above - 1)
        elif above == 0 or known[above] == value:
            codes.append(above)
        else:
            low, high = value - known[above - 1], known[above] - value
            codes.append(above if high < low or (high == low and above % 2 == 0) else above - 1)
    return codes


def every_bf16() -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def bits_of(x: Tensor) -> Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _adversarial() -> Tensor:
    """Zeros, both ends of fp32's subnormals and normals, and for many powers of two: the numbers in the middle between
    neighbours of E4M3 and E2M1, what bounds their scales, each with its two neighbours in fp32; all with both signs."""
    middles = [m + 0.5 for m in range(17)] + [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 448.0, 464.0, 2688.0]
    powers = torch.tensor(
        [-149.0, -140.0, -133.0, -127.0, -126.0, -120.0, -20.0, -9.0, -7.0, -1.0, 0.0, 1.0, 8.0, 100.0]
    )
    grid = (torch.tensor(middles, dtype=torch.float64)[:, None] * 2.0 ** powers.double()).flatten().float()
    ends = torch.tensor([0.0, 2.0**-149, 2.0**-126 - 2.0**-149, 2.0**-126, 3.0e38, 3.3895314e38, 3.4028235e38])
    values = torch.cat([grid, grid.nextafter(torch.tensor(torch.inf)), grid.nextafter(torch.tensor(0.0)), ends])
    return torch.cat([values, -values])


ADVERSARIAL = _adversarial()


def random_rows(seed: int, rows: int, width: int, dtype: torch.dtype = torch.float32, reach: float = 8.0) -> Tensor:
    """Numbers of which each row and each stretch of 16 has a size of its own, apart by many powers of two."""
    g = torch.Generator().manual_seed(seed)
    size = torch.randn(rows, 1, generator=g) * reach + torch.randn(rows, width // 16, generator=g) * reach / 4
    x = torch.randn(rows, width, generator=g) * size.exp2().repeat_interleave(16, -1)
    return x.to(dtype)


@st.composite
def tensors(draw: st.DrawFn, rows: int = 4, width: int = 64, finite: bool = False) -> Tensor:
    """Of any bit patterns, or of adversarial numbers, or of well-behaved ones."""
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float32]))
    kind = draw(st.sampled_from(["patterns", "adversarial", "random"]))
    if kind == "patterns":
        size = rows * width * dtype.itemsize
        x = torch.frombuffer(bytearray(draw(st.binary(min_size=size, max_size=size))), dtype=dtype).view(rows, width)
    elif kind == "adversarial":
        # Bytes: Hypothesis draws hundreds of numbers one by one far more slowly.
        size = 2 * rows * width
        picks = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint16) % len(ADVERSARIAL)
        x = ADVERSARIAL[torch.from_numpy(picks.astype(np.int64))].view(rows, width).to(dtype)
    else:
        x = random_rows(draw(st.integers(0, 2**20)), rows, width, dtype)
    return x.where(x.abs() < 2.0**120, torch.zeros((), dtype=dtype)) if finite else x
