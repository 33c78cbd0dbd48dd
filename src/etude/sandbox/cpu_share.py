"""Decides whether a timeout is the host's fault: the command wanted CPU time and did not get it.

The host is blamed only if all three hold: some process waited for a CPU during most of the run; the command used most
of the CPU time that the host offered it, so it did not sleep until the timeout; and that was still less than a command
needs (ENOUGH_FRACTION). A limit on CPU time needs no such check, since a command uses no CPU time while it waits for a
CPU. One cheat remains: on an overloaded host, a command that computes forever turns its timeout into an error that
blames the host.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PRESSURE, _LOAD = Path("/proc/pressure/cpu"), Path("/proc/loadavg")
WAITED_FRACTION = 0.5
"""The host is short of CPU time if some process waited for a CPU during at least this fraction of the run."""
ENOUGH_FRACTION = 0.4
"""CPU seconds per second that are enough for a run: a run that used this much does not blame the host for its timeout.
Most verifiers set a CPU-time limit below this fraction of their timeout, so such a command reaches that limit first."""
USED_FRACTION = 0.75
"""The host is blamed only if the run used at least this fraction of its offered CPU time, as one that never sleeps
does."""


@dataclass(frozen=True, slots=True)
class Share:
    """The CPU time that a host offered to a run, and what the run used of it. Shares of successive runs under one
    timeout can be added."""

    seconds: float = 0.0
    waited: float = 0.0
    """Seconds of the run in which some process on the host waited for a CPU."""
    given: float = 0.0
    """CPU seconds that the host offered to the run: what a process that never sleeps would have got beside all other
    running processes."""
    cpu_seconds: float = 0.0

    def __add__(self, other: Share) -> Share:
        return Share(
            self.seconds + other.seconds,
            self.waited + other.waited,
            self.given + other.given,
            self.cpu_seconds + other.cpu_seconds,
        )

    @property
    def short(self) -> bool:
        """Whether the host offered little CPU time while some process waited for a CPU, whatever the run itself
        used."""
        return self.waited >= WAITED_FRACTION * self.seconds > 0 and self.given < ENOUGH_FRACTION * self.seconds

    @property
    def starved(self) -> bool:
        """Whether the host is to blame for a timeout. It is if some process waited for a CPU, and the run used most of
        the CPU time that the host offered, but the host offered too little. False if nothing was measured."""
        short = self.waited >= WAITED_FRACTION * self.seconds > 0
        return short and USED_FRACTION * self.given <= self.cpu_seconds < ENOUGH_FRACTION * self.seconds


class ShareMeter:
    """Measures a run from construction until `share`. Create it on the run's host, in the process that enforces its
    timeout."""

    def __init__(self) -> None:
        self._began, self._load, self._waited = time.monotonic(), _load_per_core(), _waited()

    def share(self, cpu_seconds: float) -> Share:
        seconds, load = time.monotonic() - self._began, max(self._load, _load_per_core(), 1.0)
        waited = _waited()
        if waited is None or self._waited is None:
            # Without the kernel's pressure figures, only the load decides: count the whole run as waited.
            return Share(seconds, seconds, seconds / load, cpu_seconds)
        return Share(seconds, waited - self._waited, seconds / load, cpu_seconds)


def _load_per_core() -> float:
    """Load per CPU core: the last minute's average or the current load, whichever is higher, since the host may have
    become busy a moment ago."""
    average, *_, running = _LOAD.read_text().split()[:4]
    return max(float(average), float(running.partition("/")[0])) / (os.cpu_count() or 1)


def _waited() -> float | None:
    """Seconds since boot in which some process waited for a CPU; None if the kernel does not report them."""
    try:
        words = _PRESSURE.read_text().split()
    except OSError:
        return None
    return next((int(word[6:]) / 1e6 for word in words if word.startswith("total=")), None)
