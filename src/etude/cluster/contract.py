"""The contract of services as remote objects: start, call, stream, put and get, health, kill.

A service is a plain class named by "package.module:Class". Its public methods may be `async def`, `def`, or async
generators (streams). All backends pass the same contract tests (tests/contract/cluster.py), and only the ray backend
imports ray. Every call has a deadline, and its errors name the service and the method.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class ClusterError(Exception):
    """Base class of this package's exceptions. If a call failed, the message names service and method."""


class ServiceDied(ClusterError):
    """The process that ran the call is gone. The caller decides whether to restart the service."""


class DeadlineExceeded(ClusterError):
    """The call did not answer in time. The method may still be running."""


class ServiceFailed(ClusterError):
    """The method raised an exception. The message holds its type, text and traceback.

    Étude's own exceptions (EngineError and the like) reach the caller with their own type instead."""


@dataclass(frozen=True, slots=True)
class Health:
    alive: bool
    pid: int | None
    """Pid of the service's process; None if no process is known."""
    incarnation: int
    """How often the service has been started, the current start included."""
    seconds_up: float
    detail: str = ""
    here: bool = True
    """Whether the service is on the caller's machine, so that the pid is valid there."""


@runtime_checkable
class Remote(Protocol):
    """A handle to a running service. Handles can be sent to other services as arguments."""

    @property
    def name(self) -> str: ...

    async def call(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> Any: ...

    def stream(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the items of an async generator method. The deadline applies to each item."""
        ...

    async def health(self, *, deadline: float = 5.0) -> Health: ...

    async def restart(self, *, deadline: float) -> None:
        """Start the service again with the same arguments. The old process, if any, is killed first."""
        ...

    async def kill(self) -> None:
        """Kill the service with SIGKILL. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """A service to start: its class as `module:class`, its constructor's arguments, and where it is to run."""

    name: str
    service: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: str
    """Name of the node to run on; empty: any node."""
    cpus: float
    env: dict[str, str]


@runtime_checkable
class Cluster(Protocol):
    """Starts services on one or more nodes, and stores values that are passed to them by reference."""

    async def nodes(self) -> list[str]:
        """Return the names of the living nodes, starting with the driver's own node."""
        ...

    async def lose_node(self, node: str) -> None:
        """Kill a node and everything on it, like a power cut, to test how a run survives that. Raise ClusterError for
        the driver's own node."""
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
        """Start a service in its own process (inline backend: in this process). Return when its constructor has
        finished.

        With `node`, the service runs on that node or not at all; this includes restarts."""
        return await self.launch(Launch(name, service, args, kwargs, node, cpus, env or {}), deadline=deadline)

    async def launch(self, wanted: Launch, *, deadline: float) -> Remote:
        """Start the service that `wanted` describes. `start` calls this, and each backend implements it."""
        ...

    async def put(self, value: Any) -> Any:
        """Store a large value once. The reference can be an argument of calls, or be resolved with `get`."""
        ...

    async def get(self, reference: Any, *, deadline: float) -> Any: ...

    async def close(self) -> None:
        """Kill every service. No process, socket or shared-memory segment is left behind."""
        ...
