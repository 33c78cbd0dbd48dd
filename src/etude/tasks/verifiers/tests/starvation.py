"""Whose fault is a wall clock that expired? The host's, where the run wanted CPU time and could not have it.

A change that sleeps until the clock expires must not be excused, or nobody would ever be charged for it. So it counts
that processes waited for a CPU during most of the run, and that the run itself took what its share was: who sleeps
does not. (What is left to a cheat is to compute at just that share on a host that is short of time, for an error.)
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

_PRESSURE, _LOAD = Path("/proc/pressure/cpu"), Path("/proc/loadavg")
WAITED = 0.5
"""Share of the time in which somebody waited for a CPU, from which a host counts as short of it."""
TAKEN = 0.75
"""Of the time that it would have been given beside all others, what a run that never slept has at least taken. The
box's limit on CPU time is a third of the wall clock: on a host with two runnable processes per core it comes first."""


class Watch:
    """Over the time of one run."""

    def __enter__(self) -> Watch:
        self._began, self._load, self._waited = time.monotonic(), _load_per_core(), _waited()
        self.seconds = 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self._began
        self._load = max(self._load, _load_per_core())
        waited = _waited()
        known = self._waited is not None and waited is not None
        # A kernel that does not say: the load decides alone.
        self._share = ((waited or 0.0) - (self._waited or 0.0)) / max(self.seconds, 1e-6) if known else 1.0

    def starved(self, cpu_seconds: float) -> bool:
        """Given the CPU time that the box has used."""
        return starved(self._share, self._load, cpu_seconds, self.seconds)


def starved(waited_share: float, load_per_core: float, cpu_seconds: float, wall_seconds: float) -> bool:
    given = wall_seconds / max(load_per_core, 1.0)
    return waited_share >= WAITED and cpu_seconds >= TAKEN * given


def _load_per_core() -> float:
    """Of the last minute or of now: a host may have become busy a moment ago."""
    average, *_, running = _LOAD.read_text().split()[:4]
    return max(float(average), float(running.partition("/")[0])) / (os.cpu_count() or 1)


def _waited() -> float | None:
    """Seconds in which some process has waited for a CPU, ever; None where the kernel does not say."""
    try:
        words = _PRESSURE.read_text().split()
    except OSError:
        return None
    return next((int(word[6:]) / 1e6 for word in words if word.startswith("total=")), None)
