"""The scheduler's inputs (events) and outputs (decisions). They only hold data; the dispatcher carries out the
decisions by calls to hosts and clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from etude.sandbox.fleet.resources import Capacity, Resources

# -- events


@dataclass(frozen=True, slots=True)
class CreateRequested:
    """A client wants `count` boxes on one host, all or none. It gets exactly one answer: Granted or Rejected."""

    request: str
    owner: str
    demand: Resources
    """Resources that each single box needs."""
    count: int = 1
    image: str = ""
    pinned: str = ""
    """The only host that can take the request: it has the forked parent or the snapshot. Empty: any host."""

    @property
    def boxes(self) -> tuple[str, ...]:
        return tuple(f"{self.request}.{number}" for number in range(self.count))


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """The client no longer waits for its request."""

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
    """Whether another host might succeed. False for a request that breaks a rule, since every host would refuse it."""


@dataclass(frozen=True, slots=True)
class BoxEnded:
    """A box was destroyed by its owner, or found dead."""

    box: str


@dataclass(frozen=True, slots=True)
class OwnerRenewed:
    owner: str


@dataclass(frozen=True, slots=True)
class OwnerLeft:
    owner: str


@dataclass(frozen=True, slots=True)
class HeldBox:
    """A box that a joining host already has, because the dispatcher was restarted and the host was not."""

    box: str
    owner: str
    demand: Resources


@dataclass(frozen=True, slots=True)
class HostJoined:
    host: str
    capacity: Capacity
    held: tuple[HeldBox, ...] = ()


@dataclass(frozen=True, slots=True)
class HostReported:
    host: str
    used: Resources
    """Resource use of the whole machine, by boxes and everything else."""
    sampled: float
    """Time on the scheduler's clock at which the report was requested, in seconds. The measurement is no earlier."""


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
    FULL = "full"
    """No host had room in time. The client may ask again later."""
    IMPOSSIBLE = "impossible"
    """No host is large enough for the request."""
    FAILED = "failed"
    """The hosts that were tried failed, or the request is not allowed, so that every host would refuse it."""
    GONE = "gone"
    """The only host that could take the request is lost or draining."""
    LEFT = "left"
    """The request's client withdrew it or left, or the client's lease ran out."""


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


@dataclass(frozen=True, slots=True)
class Rejected:
    request: str
    kind: RejectKind
    reason: str
    retry_after: float = 0.0
    """Seconds after which the client should ask again. Set only if `kind` is FULL (no host had room in time)."""


@dataclass(frozen=True, slots=True)
class Destroy:
    box: str
    host: str


@dataclass(frozen=True, slots=True)
class DropHost:
    """Decision to kill a host's service, answering or not, so that its boxes are really gone."""

    host: str
    boxes: tuple[str, ...] = field(repr=False)
    """Ids of the boxes that were on the host."""


@dataclass(frozen=True, slots=True)
class HostDrained:
    """Decision to close a host that was draining and has no boxes left."""

    host: str


Decision = Place | Granted | Rejected | Destroy | DropHost | HostDrained
