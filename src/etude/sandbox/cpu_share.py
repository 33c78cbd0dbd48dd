"""Decides whether a timeout is the host's fault: the command wanted CPU time and did not get it.

The host is blamed only if all three hold: some process waited for a CPU during most of the run; the run used most of
the CPU time that the host offered it; and the CPU time it used was little. So a command is not excused if it sleeps
until the timeout, or if it never ends although it had enough CPU time. A limit on CPU time needs no such check, since a
command uses no CPU time while it waits for a CPU. One cheat remains: on an overloaded host, a command that computes at
exactly the offered share turns its timeout into an error that blames the host.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PRESSURE, _LOAD = Path("/proc/pressure/cpu"), Path("/proc/loadavg")
WAITED_FRACTION = 0.5
"""The host counts as short of CPU time if some process waited for a CPU during at least this fraction of the run."""
ENOUGH_FRACTION = 0.4
"""CPU seconds per wall-clock second that are enough for a run, even if other processes waited. Most verifiers set a
CPU-time limit below this fraction of their timeout. So a command that gets CPU time at this rate reaches that limit
before the timeout."""
USED_FRACTION = 0.75
"""A timeout counts as the host's fault only if the timed-out run used at least this fraction of the CPU time that the
host offered it. A run that never sleeps uses that much."""


@dataclass(frozen=True, slots=True)
class Share:
    """The CPU time that a host offered to a run, and what the run used of it. Shares of successive runs under one
    timeout can be added."""

    seconds: float = 0.0
    """Wall-clock seconds of the run."""
    waited: float = 0.0
    """Seconds of the run in which some process on the host waited for a CPU."""
    given: float = 0.0
    """CPU seconds that the host offered: what a process that never sleeps would have got beside all other running
    processes."""
    cpu_seconds: float = 0.0
    """CPU seconds that the run and its child processes used."""

    def __add__(self, other: Share) -> Share:
        return Share(
            self.seconds + other.seconds,
            self.waited + other.waited,
            self.given + other.given,
            self.cpu_seconds + other.cpu_seconds,
        )

    @property
    def short(self) -> bool:
        """Whether the host offered the run little CPU time while some process waited for a CPU. How much CPU time the
        run wanted to use does not matter."""
        return self.waited >= WAITED_FRACTION * self.seconds > 0 and self.given < ENOUGH_FRACTION * self.seconds

    @property
    def starved(self) -> bool:
        """Whether the run got too little CPU time because the host was short of it: the run used most of what the host
        offered it, and what it used was little. False if nothing was measured."""
        short = self.waited >= WAITED_FRACTION * self.seconds > 0
        return short and USED_FRACTION * self.given <= self.cpu_seconds < ENOUGH_FRACTION * self.seconds


class ShareMeter:
    """Measures how much CPU time the host offers a run and how much the run uses, from the meter's construction until
    `share` is called. Create the meter on the host of the run, in the process that enforces the run's timeout."""

    def __init__(self) -> None:
        self._began, self._load, self._waited = time.monotonic(), _load_per_core(), _waited()

    def share(self, cpu_seconds: float) -> Share:
        """Return what the host has offered to the run so far, and what the run has used. `cpu_seconds` is the CPU time
        that the run has used."""
        seconds, load = time.monotonic() - self._began, max(self._load, _load_per_core(), 1.0)
        waited = _waited()
        if waited is None or self._waited is None:
            # Without the kernel's pressure figures, only the load decides: count the whole run as waited.
            return Share(seconds, seconds, seconds / load, cpu_seconds)
        return Share(seconds, waited - self._waited, seconds / load, cpu_seconds)


def _load_per_core() -> float:
    """Return the load of this host per CPU core: the average of the last minute or the current load, whichever is
    higher, since the host may have become busy a moment ago."""
    average, *_, running = _LOAD.read_text().split()[:4]
    return max(float(average), float(running.partition("/")[0])) / (os.cpu_count() or 1)


def _waited() -> float | None:
    """Return the seconds since boot in which some process waited for a CPU; None if the kernel does not report them."""
    try:
        words = _PRESSURE.read_text().split()
    except OSError:
        return None
    return next((int(word[6:]) / 1e6 for word in words if word.startswith("total=")), None)
