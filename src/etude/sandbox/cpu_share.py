"""Decides whether the host is to blame for a timeout: whether a run wanted CPU time and could not have it.

A command that sleeps until its timeout must not be excused, nor one that never ends although it had enough CPU time;
otherwise no agent would ever be charged for a timeout. The host is therefore blamed only if processes waited for a CPU
during most of the run, and the run used the share of CPU time it was offered, and that share was small. A sleeping
command does not use its share. A limit in CPU time needs no such excuse, since a busy host does not use it up. (One
cheat is left: computing at exactly the offered share on an overloaded host turns a timeout into an error.)
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PRESSURE, _LOAD = Path("/proc/pressure/cpu"), Path("/proc/loadavg")
WAITED = 0.5
"""Fraction of the run in which some process waited for a CPU, from which on the host counts as short of it."""
ENOUGH = 0.4
"""CPU time as a fraction of wall time. A run that had more cannot complain, even if it keeps the host busy itself.
Verifiers set their CPU-time limit below this, so that the CPU limit is hit first."""
TAKEN = 0.75
"""Minimum fraction of the offered CPU time that a run which never sleeps has used."""


@dataclass(frozen=True, slots=True)
class Share:
    """The CPU time that a host offered to a run, and what it used. Shares of runs under one clock are added up."""

    seconds: float = 0.0
    """Wall-clock seconds."""
    waited: float = 0.0
    """Seconds of these in which some process on the host waited for a CPU."""
    given: float = 0.0
    """CPU seconds that a process which never sleeps would have got, beside all others that ran."""
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
        """The host had little CPU time to give, whatever the run would have used of it."""
        return self.waited >= WAITED * self.seconds > 0 and self.given < ENOUGH * self.seconds

    @property
    def starved(self) -> bool:
        """The host was short of CPU time, and the run used what it was offered. False if nothing was measured."""
        short = self.waited >= WAITED * self.seconds > 0
        return short and TAKEN * self.given <= self.cpu_seconds < ENOUGH * self.seconds


class Watch:
    """Measures a run's share from its construction on. It belongs to whoever owns the clock, on the run's host."""

    def __init__(self) -> None:
        self._began, self._load, self._waited = time.monotonic(), _load_per_core(), _waited()

    def share(self, cpu_seconds: float) -> Share:
        seconds, load = time.monotonic() - self._began, max(self._load, _load_per_core(), 1.0)
        waited = _waited()
        if waited is None or self._waited is None:
            # Without pressure figures, the load decides alone.
            return Share(seconds, seconds, seconds / load, cpu_seconds)
        return Share(seconds, waited - self._waited, seconds / load, cpu_seconds)


def _load_per_core() -> float:
    """The higher of the last minute's load and the current one, since a host may have become busy a moment ago."""
    average, *_, running = _LOAD.read_text().split()[:4]
    return max(float(average), float(running.partition("/")[0])) / (os.cpu_count() or 1)


def _waited() -> float | None:
    """Total seconds since boot in which some process waited for a CPU; None if the kernel does not report them."""
    try:
        words = _PRESSURE.read_text().split()
    except OSError:
        return None
    return next((int(word[6:]) / 1e6 for word in words if word.startswith("total=")), None)
