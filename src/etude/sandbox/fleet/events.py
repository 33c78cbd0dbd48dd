"""The scheduler's inputs (events) and outputs (decisions). Plain data: the dispatcher turns decisions into calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from etude.sandbox.fleet.resources import Capacity, Resources

# -- events


@dataclass(frozen=True, slots=True)
class CreateRequested:
    """A request for `count` boxes on one host, all or none. It is answered exactly once, by Granted or Rejected."""

    request: str
    owner: str
    demand: Resources
    """What each single box needs."""
    count: int = 1
    image: str = ""
    pinned: str = ""
    """The only host that will do: the parent of a fork lives there, or the image exists only there. Empty: any host."""

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
    """Whether another host might succeed. A refused request would be refused everywhere."""


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
    """A box that a joining host already has, because the dispatcher was restarted and the host was not."""

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
    """Use of the whole machine: boxes and everything else."""
    sampled: float
    """When the host measured, on the scheduler's clock; possibly earlier, never later."""


@dataclass(frozen=True, slots=True)
class HostDraining:
    host: str
    by: float
    """When the remaining boxes are ended."""


@dataclass(frozen=True, slots=True)
class HostLost:
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed and nothing else has happened."""


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
    """There was no room in time; ask again later."""
    IMPOSSIBLE = "impossible"
    """No host is large enough."""
    FAILED = "failed"
    """The hosts that were tried failed, or the request breaks a rule of boxes."""
    GONE = "gone"
    """The only host that would do is lost or draining."""
    LEFT = "left"
    """The request's owner left, or its lease ran out."""


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
    """Seconds from the request to its last placement."""


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
    """The host's service is to be killed, whether or not it answers, so that the boxes lost with it are really gone."""

    host: str
    reason: str
    boxes: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class HostDrained:
    host: str


Decision = Place | Granted | Rejected | Destroy | DropHost | HostDrained
