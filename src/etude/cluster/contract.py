"""The contract of services as remote objects: start, call, stream, put and get, health, kill.

A service is a plain class named by "package.module:Class"; its public methods may be `async def`, `def`, or async
generators (streams). Both backends follow the same contract (tests/contract/cluster.py), and only the ray backend
imports ray. Every call names what it waits for and has a deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class ClusterError(Exception):
    """Base of the exceptions of this package."""


class ServiceDied(ClusterError):
    """The process that ran the call is gone. The message names service and method. Restarting is up to the caller."""


class DeadlineExceeded(ClusterError):
    """The call did not answer in time. The message names service, method and deadline. The call may still be
    running."""


class ServiceFailed(ClusterError):
    """The method raised an exception; carries the remote type, message and traceback.

    Exceptions declared by the method's own contract (EngineError and the like) are raised as themselves instead.
    """


@dataclass(frozen=True, slots=True)
class Health:
    alive: bool
    pid: int | None
    incarnation: int
    """Which start of the service this is, counted from 1."""
    seconds_up: float
    detail: str = ""
    here: bool = True
    """Whether the service is on the caller's machine, so that the pid means something there."""


@runtime_checkable
class Remote(Protocol):
    """A handle to a running service. Handles can be sent to other services as arguments."""

    @property
    def name(self) -> str: ...

    async def call(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> Any: ...

    def stream(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the items of an async generator method; the deadline applies to each next item."""
        ...

    async def health(self, *, deadline: float = 5.0) -> Health: ...

    async def restart(self, *, deadline: float) -> None:
        """Start the service again with the same arguments; the old process, if any, is killed first."""
        ...

    async def kill(self) -> None:
        """Kill the service with SIGKILL. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """A service to start, by `module:class` and the arguments of its constructor."""

    name: str
    service: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: str
    cpus: float
    env: dict[str, str]


@runtime_checkable
class Cluster(Protocol):
    async def nodes(self) -> list[str]:
        """Names of the living nodes, the driver's own first."""
        ...

    async def lose_node(self, node: str) -> None:
        """Kill a node with everything on it, as a power cut would. For rehearsals; the driver's own node is refused."""
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
        """Start a service in its own process (inline: in this one) and return when its constructor has finished.

        With `node` the service, restarts included, runs on that node or not at all.
        """
        return await self.launch(Launch(name, service, args, kwargs, node, cpus, env or {}), deadline=deadline)

    async def launch(self, wanted: Launch, *, deadline: float) -> Remote:
        """What `start` does, as backends do it."""
        ...

    async def put(self, value: Any) -> Any:
        """Store a large value once. The reference can be passed to calls and is resolved with `get`."""
        ...

    async def get(self, reference: Any, *, deadline: float) -> Any: ...

    async def close(self) -> None:
        """Kill every service. Leaves no process, socket or shared-memory segment behind."""
        ...
