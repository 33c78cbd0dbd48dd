"""What boxes ask for and hosts have: cores, memory, disk. Plain numbers; the scheduler's only arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from etude.sandbox.contract import BoxSpec


@dataclass(frozen=True, slots=True)
class Resources:
    cpus: float = 0.0
    memory_mb: float = 0.0
    disk_mb: float = 0.0

    def times(self, count: int) -> Resources:
        return Resources(self.cpus * count, self.memory_mb * count, self.disk_mb * count)

    def within(self, other: Resources) -> bool:
        return self.cpus <= other.cpus and self.memory_mb <= other.memory_mb and self.disk_mb <= other.disk_mb


@dataclass(frozen=True, slots=True)
class Capacity:
    """A host's size."""

    total: Resources
    boxes: int = 2_000
    """However idle they are."""


def demand_of(spec: BoxSpec, cpus: float) -> Resources:
    """What a box is expected to need until its host's own figures show it: its limits, and a share of a core."""
    return Resources(cpus, float(spec.limits.memory_mb), float(spec.limits.disk_mb))
