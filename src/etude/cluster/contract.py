"""Services as remote objects: start, call, stream, put and get, health, kill. Only the ray backend imports ray.

A service is a plain class named by "package.module:Class"; its public methods may be `async def`, `def`, or async
generators (streams). Both backends keep one contract (tests/contract/cluster.py). Every call names what it waits for
and carries a deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class ClusterError(Exception):
    """A failure of the services layer."""


class ServiceDied(ClusterError):
    """The process that ran the call is gone; the message names service and method. Restarting is up to the caller."""


class DeadlineExceeded(ClusterError):
    """The call did not answer in time; the message names service, method and deadline. It may still be running."""


class ServiceFailed(ClusterError):
    """The method raised; carries the remote type, message and traceback. Exceptions that the method's own contract
    declares (EngineError and the like) are re-raised as themselves instead."""


@dataclass(frozen=True, slots=True)
class Health:
    alive: bool
    pid: int | None
    incarnation: int
    """How many times this service was started, from 1."""
    seconds_up: float
    detail: str = ""
    here: bool = True
    """On the caller's machine, so that the pid means something there."""


@runtime_checkable
class Remote(Protocol):
    """A handle to a running service. Handles can be sent to other services as arguments."""

    @property
    def name(self) -> str: ...

    async def call(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> Any: ...

    def stream(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> AsyncIterator[Any]:
        """Items of an async generator method; the deadline is for each next item."""
        ...

    async def health(self, *, deadline: float = 5.0) -> Health: ...

    async def restart(self, *, deadline: float) -> None:
        """Starts the service anew with the same arguments; the old process, if any, is killed first."""
        ...

    async def kill(self) -> None:
        """SIGKILL. Safe to call twice."""
        ...


@runtime_checkable
class Cluster(Protocol):
    async def nodes(self) -> list[str]:
        """Names of the living nodes, the driver's own first."""
        ...

    async def lose_node(self, node: str) -> None:
        """Ends a node with all that runs there, as a power cut would: for rehearsals. Not the driver's own."""
        ...

    async def start(
        self,
        name: str,
        service: str,
        *args: Any,
        node: str = "",
        cpus: float = 1.0,
        env: dict[str, str] | None = None,
        deadline: float = 60.0,
        **kwargs: Any,
    ) -> Remote:
        """Starts a service in its own process (inline: in this one) and returns when its constructor is done.

        With `node` it runs there, restarted too, or not at all."""
        ...

    async def put(self, value: Any) -> Any:
        """Stores a large value once; the reference can be passed to calls and is resolved with `get`."""
        ...

    async def get(self, reference: Any, *, deadline: float) -> Any: ...

    async def close(self) -> None:
        """Kills every service; leaves no process, socket or shared-memory segment behind."""
        ...
