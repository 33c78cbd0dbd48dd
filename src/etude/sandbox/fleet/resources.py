"""What boxes demand and hosts have: cores, memory, disk. Plain numbers, and the only arithmetic of the scheduler."""

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
    """Maximum number of boxes, however idle they are."""


def demand_of(spec: BoxSpec, cpus: float) -> Resources:
    """What a box is assumed to need until its host's reports show it: its limits, and a fraction of a core."""
    return Resources(cpus, float(spec.limits.memory_mb), float(spec.limits.disk_mb))
