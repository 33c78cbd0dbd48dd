"""The resources that boxes demand and hosts have (cores, memory, disk), with the scheduler's arithmetic on them."""

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
    total: Resources
    boxes: int = 2_000
    """Maximum number of boxes, even if they are idle."""


def demand_of(spec: BoxSpec, cpus: float) -> Resources:
    """Return what a new box is assumed to need until reports show its real use: its limits, and `cpus` cores."""
    return Resources(cpus, float(spec.limits.memory_mb), float(spec.limits.disk_mb))
