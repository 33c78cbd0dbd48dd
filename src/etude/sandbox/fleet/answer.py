"""How a host answers a call: with a value, or with an error that is part of the Box contract.

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


@dataclass(frozen=True, slots=True)
class Raised:
    error: OSError


async def answered(work: Awaitable[Any]) -> Any:
    """Awaits the work; returns its result, or an OSError that it raised, wrapped."""
    try:
        return await work
    except OSError as error:
        return Raised(type(error)(*error.args))


def opened(answer: Any) -> Any:
    if isinstance(answer, Raised):
        raise answer.error
    return answer


@contextlib.contextmanager
def answered_here(who: str) -> Iterator[None]:
    """Turns cluster errors into sandbox errors: a host that is gone or does not answer has lost the box in question."""
    try:
        yield
    except (ServiceDied, DeadlineExceeded) as error:
        raise SandboxLost(f"{who} is gone: {error}") from error
    except ClusterError as error:
        raise SandboxError(f"{who} failed: {error}") from error
