"""What the scheduler is told, and what it decides. Data alone: the dispatcher turns decisions into calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from etude.sandbox.fleet.resources import Capacity, Resources

# -- events


@dataclass(frozen=True, slots=True)
class CreateRequested:
    """`count` boxes on one host, all or none. Answered exactly once, by Granted or Rejected."""

    request: str
    owner: str
    demand: Resources
    """Of each box."""
    count: int = 1
    image: str = ""
    pinned: str = ""
    """The one host that will do: a fork's parent lives there, or the image exists there alone."""

    @property
    def boxes(self) -> tuple[str, ...]:
        return tuple(f"{self.request}.{number}" for number in range(self.count))


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """The client no longer waits."""

    request: str


@dataclass(frozen=True, slots=True)
class CreateDone:
    request: str
    host: str
    boxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateFailed:
    request: str
    host: str
    boxes: tuple[str, ...]
    reason: str
    elsewhere: bool
    """Whether another host might succeed; a refused request is refused everywhere."""


@dataclass(frozen=True, slots=True)
class BoxEnded:
    box: str


@dataclass(frozen=True, slots=True)
class OwnerRenewed:
    owner: str


@dataclass(frozen=True, slots=True)
class OwnerLeft:
    owner: str


@dataclass(frozen=True, slots=True)
class Held:
    """A box that a joining host has already: the dispatcher was restarted, the host was not."""

    box: str
    owner: str
    demand: Resources


@dataclass(frozen=True, slots=True)
class HostJoined:
    host: str
    capacity: Capacity
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class HostReported:
    host: str
    used: Resources
    """Of the whole machine, boxes and all else."""
    sampled: float
    """A moment of the scheduler's own clock, not after the host looked."""


@dataclass(frozen=True, slots=True)
class HostDraining:
    host: str
    by: float
    """When the boxes that are still there are ended."""


@dataclass(frozen=True, slots=True)
class HostLost:
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, nothing else."""


Event = (
    CreateRequested
    | RequestDropped
    | CreateDone
    | CreateFailed
    | BoxEnded
    | OwnerRenewed
    | OwnerLeft
    | HostJoined
    | HostReported
    | HostDraining
    | HostLost
    | Tick
)

# -- decisions


class Why(StrEnum):
    FULL = "full"
    """No room in time: come back later."""
    IMPOSSIBLE = "impossible"
    """No host is large enough."""
    FAILED = "failed"
    """Hosts were tried and could not, or the request is refused by what a box is."""
    GONE = "gone"
    """The one host that would do is lost or draining."""
    LEFT = "left"
    """Its owner left, or its lease ran out."""


@dataclass(frozen=True, slots=True)
class Place:
    request: str
    host: str
    boxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    request: str
    host: str
    boxes: tuple[str, ...]
    waited: float
    """From request to its last placement."""


@dataclass(frozen=True, slots=True)
class Rejected:
    request: str
    why: Why
    reason: str
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Destroy:
    box: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class DropHost:
    """Its service is to be ended, whether it answers or not, so that what is lost is truly gone."""

    host: str
    reason: str
    boxes: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class HostDrained:
    host: str


Decision = Place | Granted | Rejected | Destroy | DropHost | HostDrained
