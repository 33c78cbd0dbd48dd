"""What a build has used of its budget of wall-clock time and CPU time, and its peak memory."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from etude.sandbox.contract import BoxStats, BuildFailed, Limits


@dataclass(slots=True)
class Spending:
    seconds: float = math.inf
    """Wall-clock budget in seconds, counted from the creation of this object."""
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
        if self.seconds_left <= 0:
            raise BuildFailed(f"the build was not done in {self.seconds:g} s", "time")
        if self.used_cpu >= self.cpu_seconds:
            raise BuildFailed(f"the build took more than {self.cpu_seconds:g} s of processor time", "cpu")

    def bounded(self, limits: Limits) -> Limits:
        """Return the limits for the next step, with the CPU time reduced to what is left of the budget."""
        left = self.cpu_seconds - self.used_cpu
        return limits if left >= limits.cpu_seconds else replace(limits, cpu_seconds=max(1, math.ceil(left)))
