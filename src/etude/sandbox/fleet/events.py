"""The scheduler's inputs (events) and outputs (decisions). Plain data: the dispatcher turns decisions into calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from etude.sandbox.fleet.resources import Capacity, Resources

# -- events


@dataclass(frozen=True, slots=True)
class CreateRequested:
    """A client wants `count` boxes on one host, all or none. The request is answered exactly once, by Granted or
    Rejected."""

    request: str
    owner: str
    demand: Resources
    """What each single box needs."""
    count: int = 1
    image: str = ""
    pinned: str = ""
    """The only host that will do, because the parent of a fork lives there or the image exists only there. Empty: any
    host."""

    @property
    def boxes(self) -> tuple[str, ...]:
        """The ids of the boxes."""
        return tuple(f"{self.request}.{number}" for number in range(self.count))


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """The client no longer waits for its request."""

    request: str


@dataclass(frozen=True, slots=True)
class CreateDone:
    """A host has made a request's boxes."""

    request: str
    host: str
    boxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateFailed:
    """A host could not make a request's boxes."""

    request: str
    host: str
    boxes: tuple[str, ...]
    reason: str
    elsewhere: bool
    """Whether another host might succeed. A request that breaks a rule would be refused by every host."""


@dataclass(frozen=True, slots=True)
class BoxEnded:
    """A box was destroyed by its owner, or found dead."""

    box: str


@dataclass(frozen=True, slots=True)
class OwnerRenewed:
    """An owner has renewed its lease."""

    owner: str


@dataclass(frozen=True, slots=True)
class OwnerLeft:
    """An owner has ended its lease."""

    owner: str


@dataclass(frozen=True, slots=True)
class HeldBox:
    """A box that a joining host already has, because the dispatcher was restarted and the host was not."""

    box: str
    owner: str
    demand: Resources


@dataclass(frozen=True, slots=True)
class HostJoined:
    """A host is ready to take boxes."""

    host: str
    capacity: Capacity
    held: tuple[HeldBox, ...] = ()


@dataclass(frozen=True, slots=True)
class HostReported:
    """A host has measured its use."""

    host: str
    used: Resources
    """Use of the whole machine: by boxes and everything else."""
    sampled: float
    """When the host measured, on the scheduler's clock. It may be given too early, never too late."""


@dataclass(frozen=True, slots=True)
class HostDraining:
    """An operator wants the host to end once its boxes have ended."""

    host: str
    by: float
    """The time at which boxes that remain are destroyed."""


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host is gone: its service has died or does not answer, or it was drained."""

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


class RejectKind(StrEnum):
    """Why a request was rejected."""

    FULL = "full"
    """There was no room in time. Ask again later."""
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
    """Make these boxes on this host."""

    request: str
    host: str
    boxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """Answer a request: its boxes are made."""

    request: str
    host: str
    boxes: tuple[str, ...]
    waited: float
    """Seconds from the request until its boxes were ready."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Answer a request: it gets no boxes."""

    request: str
    kind: RejectKind
    reason: str
    retry_after: float = 0.0
    """Seconds after which to ask again; only for FULL."""


@dataclass(frozen=True, slots=True)
class Destroy:
    """Destroy a box."""

    box: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class DropHost:
    """Kill the host's service, whether or not it answers, so that its boxes are really gone."""

    host: str
    reason: str
    boxes: tuple[str, ...] = field(repr=False)
    """The boxes that were on it."""


@dataclass(frozen=True, slots=True)
class HostDrained:
    """A draining host has no boxes left and can be closed."""

    host: str


Decision = Place | Granted | Rejected | Destroy | DropHost | HostDrained
