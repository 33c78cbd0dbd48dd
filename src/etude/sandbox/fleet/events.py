"""The scheduler's inputs (events) and outputs (decisions). They only hold data; the dispatcher carries out the
decisions by calls to hosts and clients."""

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
    """Resources that each single box needs."""
    count: int = 1
    image: str = ""
    pinned: str = ""
    """Name of the only host that can take the request, because the parent of a fork is there or the image exists only
    there. Empty: any host."""

    @property
    def boxes(self) -> tuple[str, ...]:
        """Ids of the requested boxes."""
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
    """Whether another host might succeed. False for a request that breaks a rule, since every host would refuse it."""


@dataclass(frozen=True, slots=True)
class BoxEnded:
    """A box was destroyed by its owner, or found dead."""

    box: str


@dataclass(frozen=True, slots=True)
class OwnerRenewed:
    """A client has renewed the lease on its boxes."""

    owner: str


@dataclass(frozen=True, slots=True)
class OwnerLeft:
    """A client has ended the lease on its boxes."""

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
    """A host has reported the resource use that it measured."""

    host: str
    used: Resources
    """Resource use of the whole machine, by boxes and everything else."""
    sampled: float
    """Time of the measurement on the scheduler's clock, in seconds. It is the time at which the report was requested,
    so the measurement may be a little later, but never earlier."""


@dataclass(frozen=True, slots=True)
class HostDraining:
    """An operator wants the host to end once its boxes have ended."""

    host: str
    by: float
    """Time on the scheduler's clock at which the remaining boxes are destroyed."""


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host is gone: its service has died or does not answer, or it was drained."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed without another event, so that timers may be due."""


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
    """No host had room in time. The client may ask again later."""
    IMPOSSIBLE = "impossible"
    """No host is large enough for the request."""
    FAILED = "failed"
    """The hosts that were tried failed to make the boxes, or the request is not allowed, so that every host would
    refuse it."""
    GONE = "gone"
    """The only host that could take the request is lost or draining."""
    LEFT = "left"
    """The request's client withdrew it or left, or the client's lease ran out."""


@dataclass(frozen=True, slots=True)
class Place:
    """Decision to make a request's boxes on a host."""

    request: str
    host: str
    boxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """The scheduler's decision to grant a request, whose boxes have been made."""

    request: str
    host: str
    boxes: tuple[str, ...]
    waited: float
    """Seconds from the request until its boxes were ready."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The scheduler's decision to reject a request, which gets no boxes."""

    request: str
    kind: RejectKind
    reason: str
    retry_after: float = 0.0
    """Seconds after which the client should ask again. Set only if `kind` is FULL (no host had room in time)."""


@dataclass(frozen=True, slots=True)
class Destroy:
    """Decision to destroy a box."""

    box: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class DropHost:
    """Decision to kill a host's service, whether or not the service answers, so that the host's boxes are really
    gone."""

    host: str
    reason: str
    boxes: tuple[str, ...] = field(repr=False)
    """Ids of the boxes that were on the host."""


@dataclass(frozen=True, slots=True)
class HostDrained:
    """Decision to close a host that was draining and has no boxes left."""

    host: str


Decision = Place | Granted | Rejected | Destroy | DropHost | HostDrained
