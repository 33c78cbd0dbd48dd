"""Carries errors of the Box contract from a host to the client, and defines FleetFull, the one error that a fleet adds.

The cluster transports this project's own errors as they are. The contract also promises some built-in errors of Python
(OSErrors), which are wrapped here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Any

from etude.cluster.contract import ClusterError, DeadlineExceeded, ServiceDied
from etude.sandbox.contract import SandboxError, SandboxLost


class FleetFull(SandboxError):
    """No host had room for the boxes in time; none were made. Ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.message, self.retry_after = message, retry_after

    def __str__(self) -> str:
        return f"{self.message}; try again in {self.retry_after:.0f} s"


@dataclass(frozen=True, slots=True)
class WrappedError:
    """An OSError that a host returns as the result of a call, for the client to raise."""

    error: OSError


async def wrap_os_errors(work: Awaitable[Any]) -> Any:
    """Await the work and return its result. If it raises an OSError, return the error as a WrappedError."""
    try:
        return await work
    except OSError as error:
        return WrappedError(type(error)(*error.args))


def unwrap(answer: Any) -> Any:
    if isinstance(answer, WrappedError):
        raise answer.error
    return answer


@contextlib.contextmanager
def as_sandbox_errors(who: str) -> Iterator[None]:
    """Turn cluster errors into sandbox errors: SandboxLost if the host (`who`) is gone or does not answer."""
    try:
        yield
    except (ServiceDied, DeadlineExceeded) as error:
        raise SandboxLost(f"{who} is gone: {error}") from error
    except ClusterError as error:
        raise SandboxError(f"{who} failed: {error}") from error
