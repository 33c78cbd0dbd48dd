"""Measures a machine's cores, memory and disk, and how much of each is in use.

Use of cores and memory is that of the whole machine, since other programs come and go. Files of others are assumed to
stay, so the disk's capacity is the space that was free at the start. If the whole disk counted, a large disk that is
nearly full would take no boxes, although it still has room for many.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from etude.sandbox.fleet.resources import Capacity, Resources

_MIB = 1 << 20


class LoadMeter:
    """Measures this machine. `capacity` is fixed at construction; `disk` is a folder where boxes are stored."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._ticks = _ticks()
        cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total
        self.capacity = Capacity(Resources(cores, memory / _MIB, max(1.0, self._free_mb())))

    def measure(self) -> Resources:
        """Return the cores, memory and disk in use. Busy cores are averaged over the time since the last call."""
        memory = psutil.virtual_memory()
        disk = max(0.0, self.capacity.total.disk_mb - self._free_mb())
        return Resources(self._busy_cores(), (memory.total - memory.available) / _MIB, disk)

    def _free_mb(self) -> float:
        space = os.statvfs(self._disk)
        return space.f_bavail * space.f_frsize / _MIB

    def _busy_cores(self) -> float:
        before, self._ticks = self._ticks, _ticks()
        total, idle = (now - then for now, then in zip(self._ticks, before, strict=True))
        return (os.cpu_count() or 1) * (1 - idle / total) if total > 0 else 0.0


def _ticks() -> tuple[int, int]:
    """Return CPU ticks of all cores since boot: (total, idle)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]
