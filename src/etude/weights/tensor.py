"""A tensor as bytes: dtype, shape, and the raw little-endian elements. Needs neither torch nor a numpy bfloat16.

Tensors are compared by bytes, so two that differ only in NaN payloads or signs of zeros are unequal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from etude.weights.errors import WeightsError

Bytes = NDArray[np.uint8]

ITEM_SIZES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element, by torch's name of the dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    dtype: str
    shape: tuple[int, ...]
    data: Bytes
    """Flat and contiguous; read-only once created."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            raise WeightsError(f"unknown dtype {self.dtype!r}; known: {', '.join(ITEM_SIZES)}")
        expected = bytes_of(self.dtype, self.shape)
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or self.data.size != expected:
            found = f"{self.data.dtype} {self.data.shape}"
            raise WeightsError(f"{self.dtype} {list(self.shape)} needs a flat uint8 array of {expected}, found {found}")
        if not self.data.flags.c_contiguous:
            raise WeightsError(f"{self.dtype} {list(self.shape)}: the bytes must be contiguous")

    @property
    def itemsize(self) -> int:
        return ITEM_SIZES[self.dtype]

    def like(self, other: RawTensor) -> bool:
        return self.dtype == other.dtype and self.shape == other.shape

    def equals(self, other: RawTensor) -> bool:
        return self.like(other) and np.array_equal(self.data, other.data)


Tensors = Mapping[str, RawTensor]


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * ITEM_SIZES[dtype]


def checksum(data: Bytes | bytes | memoryview) -> str:
    """xxh3-128 in hex: it detects accidental damage, but not deliberate changes."""
    return xxhash.xxh3_128_hexdigest(data.data if isinstance(data, np.ndarray) else data)
