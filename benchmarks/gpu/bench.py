"""Shared by the kernels' rows: the sizes measured, timing, and turning a kernel's failure into a row."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes at which the kernels are measured."""

    hidden: int
    inner: int
    rows: int
    """Rows of a matrix that is quantised."""
    loads: tuple[tuple[int, int], ...]
    """(experts, rows of all experts together) of the grouped matmuls, the largest first, since kernels are tuned on the
    first one."""
    layers: tuple[tuple[int, int], ...]
    """(experts, tokens) of a layer. It has `choices` rows per token."""
    choices: int
    copied: int
    dense: int
    runs: int


K2 = Sizes(
    hidden=7168,
    inner=2048,
    rows=32768,
    loads=((48, 32768), (48, 4096), (8, 32768), (8, 4096)),
    layers=((48, 4096), (48, 32768), (8, 4096)),
    choices=8,
    copied=2**30,
    dense=8192,
    runs=12,
)
TINY = Sizes(
    hidden=128, inner=128, rows=32, loads=((3, 6),), layers=((2, 4),), choices=2, copied=2**10, dense=32, runs=1
)
"""Sizes to test this script, with or without a GPU: a single block each, since Triton's interpreter is slow."""


@dataclass
class Bench:
    """Measures rows on one device until its time is up."""

    device: str
    sizes: Sizes
    until: float
    """Time on the monotonic clock after which no row is started."""
    copy_gb_s: float = 0.0
    peak: dict[str, float] = field(default_factory=dict)
    """TFLOP/s of a dense matmul, by kind of number."""

    def row(self, kernel: str, shape: str, measured: Callable[[], Row]) -> Row:
        """Measure one row. A failure of the kernel becomes its row, so that the others are still measured."""
        named = {"kernel": kernel, "shape": shape}
        if time.monotonic() > self.until:
            return {**named, "not_measured": "time was up"}
        try:
            return {**named, **measured()}
        except Exception as error:  # noqa: BLE001 - compilers and drivers raise of their own
            return {**named, "not_measured": f"{type(error).__name__}: {str(error).strip()[:300]}"}

    def milliseconds(self, work: Callable[[], object]) -> float:
        """Median milliseconds of several runs, after a few that compile, tune and warm up."""
        for _ in range(self.sizes.runs // 4):
            work()
        return statistics.median(self._milliseconds(work) for _ in range(self.sizes.runs))

    def _milliseconds(self, work: Callable[[], object]) -> float:
        if self.device == "cpu":
            started = time.perf_counter()
            work()
            return 1000 * (time.perf_counter() - started)
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        return begun.elapsed_time(ended)

    def share(self, tflops: float, kind: str) -> float | None:
        """Share of the measured peak for this kind of number; None if the peak was not measured."""
        return round(tflops / self.peak[kind], 3) if kind in self.peak else None
