"""What a build has taken of what it may take in all: seconds of the clock and of processors, and memory at once."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from etude.sandbox.contract import BoxStats, BuildFailed, Limits


@dataclass(slots=True)
class Spending:
    seconds: float = math.inf
    """By the clock, from now on."""
    cpu_seconds: float = math.inf
    used_cpu: float = 0.0
    most_memory: int = 0
    _began: float = field(default_factory=time.monotonic)

    def add(self, stats: BoxStats) -> None:
        self.used_cpu += stats.cpu_seconds
        self.most_memory = max(self.most_memory, stats.memory_bytes)

    @property
    def seconds_left(self) -> float:
        return self._began + self.seconds - time.monotonic()

    def check(self) -> None:
        """BuildFailed once there is nothing left."""
        if self.seconds_left <= 0:
            raise BuildFailed(f"the build was not done in {self.seconds:g} s", "time")
        if self.used_cpu >= self.cpu_seconds:
            raise BuildFailed(f"the build took more than {self.cpu_seconds:g} s of processor time", "cpu")

    def bounded(self, limits: Limits) -> Limits:
        """Of the next step."""
        left = self.cpu_seconds - self.used_cpu
        return limits if left >= limits.cpu_seconds else replace(limits, cpu_seconds=max(1, math.ceil(left)))
