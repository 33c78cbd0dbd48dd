"""All tunable numbers of the fleet, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from etude.sandbox.fleet.resources import Resources

CEILING = Resources(cpus=1.5, memory_mb=0.85, disk_mb=0.85)


@dataclass(frozen=True, slots=True)
class Policy:
    ceiling: Resources = CEILING
    """Fraction of a host's capacity up to which boxes are placed. Cores are time-shared, so theirs may be above 1."""
    box_cpus: float = 0.25
    """Cores that a new box is expected to keep busy."""
    settle_seconds: float = 3.0
    """Time after which a new box's use shows in its host's reports; until then its demand is reserved."""
    host_rate: float = 40.0
    """Creations per second on one host; `host_burst` is how many at once after a pause."""
    host_burst: int = 40
    fleet_rate: float = 2_000.0
    """Creations per second in the whole fleet."""
    fleet_burst: int = 2_000
    patience: float = 60.0
    """How long a request waits for room before it is rejected with a time to ask again."""
    claim_after: float = 0.25
    """Fraction of its patience after which a host is kept free for a request."""
    queue: int = 20_000
    """Maximum number of waiting requests; further ones are rejected at once."""
    attempts: int = 3
    """Number of hosts on which one creation is tried."""
    create_seconds: float = 60.0
    """Time limit of one attempt, not counting the making of its image."""
    image_seconds: float = 1_800.0
    lease_seconds: float = 60.0
    """A client that is silent for this long loses its boxes."""
    beat_seconds: float = 1.0
    """Time between two reports of a host."""
    silent_seconds: float = 5.0
    """A host that has not reported for this long gets no new boxes."""
    lost_seconds: float = 20.0
    """A host that has not reported for this long is killed, and its boxes are given up."""
    orphan_seconds: float = 120.0
    """A host that the dispatcher has not called for this long destroys its boxes."""
    restarts: int = 5
    """How often a host's service is restarted."""
