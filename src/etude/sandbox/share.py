"""Whose fault is a wall clock that expired? The host's, where a run wanted CPU time and could not have it.

A command that sleeps until its clock expires must not be excused, nor one that never ends though it had time enough, or
no agent would ever be charged for them. So it counts that processes waited for a CPU during most of the run, that it
took its share of the time, and that this was little: who sleeps does not. A limit in CPU time needs no such excuse: a
busy host does not use it up. (What is left to a cheat is to compute at just its share on a host that is short of time,
for an error.)
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PRESSURE, _LOAD = Path("/proc/pressure/cpu"), Path("/proc/loadavg")
WAITED = 0.5
"""Share of the time in which somebody waited for a CPU, from which a host counts as short of it."""
ENOUGH = 0.4
"""CPU time as a part of the clock: who had more has nothing to complain of, also where it keeps the host busy itself.
Verifiers set their limit on CPU time to less, so that it comes first."""
TAKEN = 0.75
"""Of the time that it would have been given, what a run that never slept has at least taken."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a host had for a run, and what the run took of it. Those of runs under one clock are added up."""

    seconds: float = 0.0
    """By the clock."""
    waited: float = 0.0
    """Of them, those in which some process of the host waited for a CPU."""
    given: float = 0.0
    """CPU time of a process that never slept, beside all others that ran."""
    cpu_seconds: float = 0.0
    """That the run took, with all that it started."""

    def __add__(self, other: Share) -> Share:
        return Share(
            self.seconds + other.seconds,
            self.waited + other.waited,
            self.given + other.given,
            self.cpu_seconds + other.cpu_seconds,
        )

    @property
    def short(self) -> bool:
        """The host had little time to give, whatever the run would have taken of it."""
        return self.waited >= WAITED * self.seconds > 0 and self.given < ENOUGH * self.seconds

    @property
    def starved(self) -> bool:
        """Never where nobody measured."""
        short = self.waited >= WAITED * self.seconds > 0
        return short and TAKEN * self.given <= self.cpu_seconds < ENOUGH * self.seconds


class Watch:
    """From its making on; kept by whoever owns the clock, on the host where the run is."""

    def __init__(self) -> None:
        self._began, self._load, self._waited = time.monotonic(), _load_per_core(), _waited()

    def share(self, cpu_seconds: float) -> Share:
        seconds, load = time.monotonic() - self._began, max(self._load, _load_per_core(), 1.0)
        waited = _waited()
        if waited is None or self._waited is None:
            return Share(seconds, seconds, seconds / load, cpu_seconds)  # The load decides alone.
        return Share(seconds, waited - self._waited, seconds / load, cpu_seconds)


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
