"""The elementwise passes used for quantising and dequantising; the formats themselves compute what is needed per block.

There are two implementations, equal to the last bit. `in_torch` runs on every device, tensor operation by tensor
operation. `in_numba` runs each pass as one loop on a CPU, several times faster; it is used on CPUs wherever Numba is
installed.

Rows are [N, K]; scales are [N, K / block], one per block of a row; outer scales are [N, 1], one per row.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from etude.model.precision.elements import Element


class ThereAndBack(NamedTuple):
    """Scales of a rounding there and back: the values of the codes are multiplied by `back` per block and `outer`."""

    scales: Tensor
    back: Tensor
    outer: Tensor | None = None


class Passes(Protocol):
    def by(self) -> str:
        """Name of the implementation, for messages."""

    def largest(self, rows: Tensor, block: int) -> Tensor:
        """Return the largest magnitude of each block, in fp32; NaN if one of its numbers is NaN."""

    def encode_e4m3(self, rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
        """Rows / scales (with `divide`) or rows * scales as float8_e4m3fn, saturating. NaN becomes any code."""

    def encode_e2m1(self, rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
        """Encode as E2M1 likewise, two codes per byte: uint8 [N, K / 2], the first of a pair in the low half."""

    def round_to(self, rows: Tensor, element: Element, by: ThereAndBack, dtype: torch.dtype, *, divide: bool) -> Tensor:
        """Round to the element type and scale back. NaN stays NaN; a zero may lose its sign."""

    def decode_e4m3(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor: ...

    def decode_e2m1(self, packed: Tensor, scales: Tensor, outer: Tensor, dtype: torch.dtype) -> Tensor: ...


def passes_on(device: torch.device) -> Passes:
    name = "in_numba" if device.type == "cpu" and has_numba() else "in_torch"
    return cast(Passes, importlib.import_module(f"{__package__}.{name}"))


@cache
def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None
