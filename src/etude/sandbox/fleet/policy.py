"""Every number of the fleet, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from etude.sandbox.fleet.resources import Resources

CEILING = Resources(cpus=1.5, memory_mb=0.85, disk_mb=0.85)


@dataclass(frozen=True, slots=True)
class Policy:
    ceiling: Resources = CEILING
    """The part of a host's capacity up to which boxes are placed. Cores are shared in time: more than all of them."""
    box_cpus: float = 0.25
    """Cores that a new box is expected to keep busy."""
    settle_seconds: float = 3.0
    """So long after it was made, a box's needs are in what its host reports; until then they are reserved."""
    host_rate: float = 40.0
    """Creations per second on one host, and how many at once after a pause."""
    host_burst: int = 40
    fleet_rate: float = 2_000.0
    """Creations per second in all."""
    fleet_burst: int = 2_000
    patience: float = 60.0
    """So long a request waits for room before it is answered with when to come back."""
    claim_after: float = 0.25
    """The part of its patience after which a request has a host kept free for it."""
    queue: int = 20_000
    """Requests that may wait; the next is answered at once."""
    attempts: int = 3
    """Hosts on which one creation is tried."""
    create_seconds: float = 60.0
    """How long one attempt may take, the making of its image not counted."""
    image_seconds: float = 1_800.0
    lease_seconds: float = 60.0
    """A client that says nothing for so long loses its boxes."""
    beat_seconds: float = 1.0
    """Between two reports of a host."""
    silent_seconds: float = 5.0
    """A host that has not reported for so long gets no new box..."""
    lost_seconds: float = 20.0
    """...and after this its boxes are given up, and it is ended."""
    orphan_seconds: float = 120.0
    """A host that the dispatcher has not called for so long destroys its boxes."""
    restarts: int = 5
    """How often a host's service is started again."""
