"""The passes over all numbers that quantising and its way back are made of; what is worked out block by block is the
formats' own.

Two implementations, the same to the last bit: `in_torch` runs on every device, tensor by tensor; `in_numba` does each
pass as one loop on a CPU, several times faster. It is taken for a CPU wherever Numba is installed.

Rows are [N, K]; scales, one for each block of a row, [N, K / block]; outer scales, one for each row, [N, 1].
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor

from etude.model.precision.elements import Element


class Passes(Protocol):
    def by(self) -> str:
        """Who computes, for people."""

    def largest(self, rows: Tensor, block: int) -> Tensor:
        """The largest magnitude of each block, in fp32. NaN if one of its numbers is."""

    def encode_e4m3(self, rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
        """float8_e4m3fn of rows / scales, or rows * scales, saturating. Of NaN any code."""

    def encode_e2m1(self, rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
        """Likewise; two codes a byte, uint8 [N, K / 2], the first of a pair in the low half."""

    def round_to(
        self,
        rows: Tensor,
        element: Element,
        scales: Tensor,
        back: Tensor,
        outer: Tensor | None,
        dtype: torch.dtype,
        *,
        divide: bool,
    ) -> Tensor:
        """The numbers that the codes stand for, times `back`, one for each block, times `outer`. NaN stays NaN; a zero
        may lose its sign."""

    def decode_e4m3(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor: ...

    def decode_e2m1(self, packed: Tensor, scales: Tensor, outer: Tensor, dtype: torch.dtype) -> Tensor: ...


def passes_on(device: torch.device) -> Passes:
    name = "in_numba" if device.type == "cpu" and has_numba() else "in_torch"
    return cast(Passes, importlib.import_module(f"{__package__}.{name}"))


@cache
def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None
