"""The scheduler's bookkeeping of one host.

A host's load is what it last reported, plus a reservation for each box that is too new to show in that report. A
reservation ends with the first report that was sampled `settle_seconds` after its box was made. So every box counts
once, as a reservation or in the report.
"""

from __future__ import annotations

from enum import StrEnum

from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.resources import Capacity, Resources
from etude.sandbox.fleet.token_bucket import TokenBucket
from etude.sandbox.fleet.waiting_requests import Pending


class HostState(StrEnum):
    UP = "up"
    SILENT = "silent"
    """The host's report is late. It keeps its boxes and gets no new ones."""
    DRAINING = "draining"
    """The host gets no new boxes and is closed once its boxes are gone."""


class HostLedger:
    def __init__(self, name: str, capacity: Capacity, policy: Policy, now: float) -> None:
        self.name, self.capacity = name, capacity
        self.state = HostState.UP
        self.bucket = TokenBucket(policy.host_rate, policy.host_burst, now)
        self.last_report = now
        """When the host last reported or joined."""
        self.claimant: Pending | None = None
        """The waiting request that this host is kept free for, if any."""
        self.cooling = False
        """Whether the host's token bucket is empty, so that it gets no new boxes for now."""
        self.boxes: dict[str, Resources] = {}
        """Maps every box that exists or is being made on this host to its demand."""
        self._settle = policy.settle_seconds
        total, ceiling = capacity.total, policy.ceiling
        self.limit = Resources(
            total.cpus * ceiling.cpus, total.memory_mb * ceiling.memory_mb, total.disk_mb * ceiling.disk_mb
        )
        """Load up to which boxes are placed on this host: its capacity times `Policy.ceiling`."""
        self._used = Resources()
        self._unseen: dict[str, float | None] = {}
        """Boxes too new to show in reports, oldest first -> time at which each was ready, or None while it is made."""
        self._cpus = self._memory = self._disk = 0.0  # Sums of all reservations.

    @property
    def load(self) -> Resources:
        """The host's resource use in its last report, plus what is reserved for boxes too new to show in it."""
        used = self._used
        return Resources(used.cpus + self._cpus, used.memory_mb + self._memory, used.disk_mb + self._disk)

    @property
    def takes_boxes(self) -> bool:
        return self.state is HostState.UP and not self.cooling

    def fits(self, demand: Resources, count: int) -> bool:
        limit, used = self.limit, self._used
        return (
            used.memory_mb + self._memory + demand.memory_mb * count <= limit.memory_mb
            and used.cpus + self._cpus + demand.cpus * count <= limit.cpus
            and used.disk_mb + self._disk + demand.disk_mb * count <= limit.disk_mb
            and len(self.boxes) + count <= self.capacity.boxes
        )

    def shortages(self, demand: Resources, count: int) -> list[str]:
        """Return the resources of which the host has too little for these boxes, as texts with figures."""
        wanted, load = demand.times(count), self.load
        short = [
            f"{what} ({had:,.0f} of {most:,.0f}{unit} in use, {more:,.0f} wanted)"
            for what, unit, had, most, more in (
                ("memory", " MiB", load.memory_mb, self.limit.memory_mb, wanted.memory_mb),
                ("disk", " MiB", load.disk_mb, self.limit.disk_mb, wanted.disk_mb),
                ("boxes", "", len(self.boxes), self.capacity.boxes, count),
            )
            if had + more > most
        ]
        if load.cpus + wanted.cpus > self.limit.cpus:
            short.insert(0, f"cores ({load.cpus:.1f} of {self.limit.cpus:.1f} busy)")
        return short

    def could_ever_fit(self, demand: Resources, count: int) -> bool:
        """Return whether `count` boxes, each of which needs `demand`, would fit on the host if it were empty."""
        return count <= self.capacity.boxes and demand.times(count).within(self.limit)

    def free(self) -> float:
        """Return the free fraction (0 to 1) of the host's scarcest resource."""
        limit, used = self.limit, self._used
        return max(
            0.0,
            min(
                1.0 - (used.cpus + self._cpus) / limit.cpus,
                1.0 - (used.memory_mb + self._memory) / limit.memory_mb,
                1.0 - (used.disk_mb + self._disk) / limit.disk_mb,
                1.0 - len(self.boxes) / self.capacity.boxes,
            ),
        )

    def reserve(self, boxes: tuple[str, ...], demand: Resources) -> None:
        for box in boxes:
            self.boxes[box] = demand
            self._unseen[box] = None
            self._count(demand, 1)

    def ready(self, boxes: tuple[str, ...], now: float) -> None:
        """Record that boxes are ready. Their reservations end with the first report that includes their use."""
        for box in boxes:
            self._unseen.pop(box, None)
            self._unseen[box] = now

    def adopt(self, box: str, demand: Resources, now: float) -> None:
        """Record a box that the host already had when it joined."""
        self.reserve((box,), demand)
        self.ready((box,), now)

    def release(self, box: str) -> bool:
        """Remove a box, and free what is still reserved for it. Return whether the box was on this host."""
        demand = self.boxes.pop(box, None)
        if demand is None:
            return False
        if box in self._unseen:
            del self._unseen[box]
            self._count(demand, -1)
        return True

    def report(self, used: Resources, sampled: float, now: float) -> None:
        """Record the use measured at the time `sampled`, and end the reservations of boxes that it includes."""
        self._used, self.last_report = used, now
        if self.state is HostState.SILENT:
            self.state = HostState.UP
        seen = [box for box, at in self._unseen.items() if at is not None and at + self._settle <= sampled]
        for box in seen:
            del self._unseen[box]
            self._count(self.boxes[box], -1)
        if not self._unseen:
            self._cpus = self._memory = self._disk = 0.0  # Remove rounding errors.

    def _count(self, demand: Resources, sign: int) -> None:
        """Add a box's demand to the sums of all reservations on this host (sign 1), or subtract it (sign -1)."""
        self._cpus += sign * demand.cpus
        self._memory += sign * demand.memory_mb
        self._disk += sign * demand.disk_mb
