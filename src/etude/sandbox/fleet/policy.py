"""All tunable numbers of the fleet."""

from __future__ import annotations

from dataclasses import dataclass

from etude.sandbox.fleet.resources import Resources

CEILING = Resources(cpus=1.5, memory_mb=0.85, disk_mb=0.85)
"""Default of `Policy.ceiling`: fractions of a host's cores, memory and disk."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers by which a fleet places boxes, waits, and gives up."""

    ceiling: Resources = CEILING
    """Fraction of a host's capacity up to which boxes are placed. Boxes share cores in time, so the fraction of cores
    may be above 1."""
    box_cpus: float = 0.25
    """Number of cores that a new box is expected to keep busy."""
    settle_seconds: float = 3.0
    """Seconds after which a new box's use shows in its host's reports. Until then, its demand is reserved."""
    host_rate: float = 40.0
    """Maximum number of box creations per second on one host, in the long run."""
    host_burst: int = 40
    """Number of box creations that one host may start at once after a pause."""
    fleet_rate: float = 2_000.0
    """Maximum number of box creations per second in the whole fleet, in the long run."""
    fleet_burst: int = 2_000
    """Number of box creations that the whole fleet may start at once after a pause."""
    patience: float = 60.0
    """Seconds that a request waits for room before it is rejected. The rejection says when to ask again."""
    claim_after: float = 0.25
    """Fraction of its maximum waiting time (`patience`) that a request waits before a host is kept free for it."""
    queue: int = 20_000
    """Maximum number of waiting requests. Further requests are rejected at once."""
    attempts: int = 3
    """Number of hosts on which the creation of a box is tried."""
    create_seconds: float = 60.0
    """Time limit in seconds of one attempt to make a box, not counting the making of its image."""
    image_seconds: float = 1_800.0
    """Time limit in seconds for making an image on a host."""
    lease_seconds: float = 60.0
    """Seconds without a renewal of its lease after which a client loses its boxes."""
    beat_seconds: float = 1.0
    """Seconds between two reports of a host."""
    silent_seconds: float = 5.0
    """Seconds without a report after which a host gets no new boxes."""
    lost_seconds: float = 20.0
    """Seconds without a report after which a host is killed and its boxes are given up."""
    orphan_seconds: float = 120.0
    """Seconds without a call from the dispatcher after which a host destroys its boxes."""
    restarts: int = 5
    """Maximum number of times that the service of a lost host is restarted."""
