"""What a machine has and how much of it is in use: all of it, whoever uses it."""

from __future__ import annotations

import os
from pathlib import Path

from etude.sandbox.fleet.resources import Capacity, Resources

_MIB = 1 << 20


def capacity_of_this_machine(disk: Path) -> Capacity:
    space = os.statvfs(disk)
    cores = len(os.sched_getaffinity(0))
    return Capacity(Resources(cores, _memory("MemTotal") / _MIB, space.f_blocks * space.f_frsize / _MIB))


class Gauge:
    """Cores are those that were busy since the last look."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._ticks = _ticks()

    def look(self) -> Resources:
        space = os.statvfs(self._disk)
        memory = _memory("MemTotal") - _memory("MemAvailable")
        disk = (space.f_blocks - space.f_bavail) * space.f_frsize
        return Resources(self._busy_cores(), memory / _MIB, disk / _MIB)

    def _busy_cores(self) -> float:
        before, self._ticks = self._ticks, _ticks()
        total, idle = (now - then for now, then in zip(self._ticks, before, strict=True))
        return (os.cpu_count() or 1) * (1 - idle / total) if total > 0 else 0.0


def _ticks() -> tuple[int, int]:
    """Of all cores since the start of the machine: in all, and idle."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def _memory(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no line {name}")
