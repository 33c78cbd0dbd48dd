"""The elementwise loops of quantising and dequantising ("passes"). Each format computes its block scales itself.

There are two implementations with bit-equal results. `in_torch` consists of tensor operations and runs on every device.
`in_numba` compiles each pass to one loop for the CPU and is several times as fast; it is used on CPUs if Numba is
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


class RoundingScales(NamedTuple):
    scales: Tensor
    """A scale for each block of a row: before rounding, `round_to` divides the block's numbers by it (with `divide`) or
    multiplies them with it."""
    back: Tensor
    """A factor for each block of a row, by which `round_to` multiplies the rounded numbers to scale them back."""
    outer: Tensor | None = None
    """A further factor for each row, by which `round_to` multiplies the rounded numbers; None means 1."""


class Passes(Protocol):
    """The elementwise loops, which the modules `in_torch` and `in_numba` implement."""

    def by(self) -> str:
        """Return the name of the implementation, to show to the user."""

    def largest(self, rows: Tensor, block: int) -> Tensor:
        """Return the largest magnitude of each block, in fp32; NaN if one of its numbers is NaN."""

    def encode_e4m3(self, rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
        """Return rows / scales (`divide`) or rows * scales as float8_e4m3fn, saturating. NaN gets an arbitrary code."""

    def encode_e2m1(self, rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
        """Return rows / scales (with `divide`) or rows * scales as E2M1 codes, saturating. Two codes are packed per
        byte, the first of a pair in the low half: uint8 [N, K / 2]. NaN gets an arbitrary code."""

    def round_to(
        self, rows: Tensor, element: Element, by: RoundingScales, dtype: torch.dtype, *, divide: bool
    ) -> Tensor:
        """Scale rows, round them to the element type and scale them back. NaN stays NaN; a zero may lose its sign."""

    def decode_e4m3(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the values of E4M3 codes times their block scales."""

    def decode_e2m1(self, packed: Tensor, scales: Tensor, outer: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the values of packed E2M1 codes times their block scales and their row's outer scale."""


def passes_on(device: torch.device) -> Passes:
    """Return the fastest implementation of the elementwise loops for a device."""
    name = "in_numba" if device.type == "cpu" and has_numba() else "in_torch"
    return cast(Passes, importlib.import_module(f"{__package__}.{name}"))


@cache
def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None
