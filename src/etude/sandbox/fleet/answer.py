"""How a host answers: with a value, or with an error that is part of the Box contract.

The cluster carries errors of this project as themselves; the contract also promises some of Python's own.
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
    """The result, or what of Python's own it raised."""
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
    """A host that is gone or does not answer has lost what it was asked about."""
    try:
        yield
    except (ServiceDied, DeadlineExceeded) as error:
        raise SandboxLost(f"{who} is gone: {error}") from error
    except ClusterError as error:
        raise SandboxError(f"{who} failed: {error}") from error
