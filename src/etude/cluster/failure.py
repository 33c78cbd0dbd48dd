"""Carries a service's exception to its caller: as itself if it is one of Étude's own, otherwise as ServiceFailed.

A ClusterError raised inside a service (because it lost a service of its own) arrives as ServiceFailed too: ServiceDied
must always mean that the called service itself died.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from etude.cluster.contract import ClusterError, ServiceFailed


@dataclass(frozen=True, slots=True)
class Failure:
    """What a service returns instead of a result when its method raised."""

    type: str
    message: str
    traceback: str
    itself: bytes | None
    """The pickled exception, if it may be raised as itself."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind = type(error)
        return cls(
            type=f"{kind.__module__}.{kind.__qualname__}",
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
            itself=_pickled(error) if kind.__module__.startswith("etude.") else None,
        )

    def exception(self, name: str, method: str) -> Exception:
        if self.itself is not None:
            error: Exception = pickle.loads(self.itself)
            return error
        return ServiceFailed(f"{name}.{method} raised {self.type}: {self.message}\n{self.traceback}")


def _pickled(error: BaseException) -> bytes | None:
    if isinstance(error, ClusterError) or not isinstance(error, Exception):
        return None
    try:
        raw = pickle.dumps(error)
        same = type(pickle.loads(raw)) is type(error)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError):
        return None  # not picklable, for example because the constructor does not accept the exception's own args
    return raw if same else None
