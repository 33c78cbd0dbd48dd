"""Carries an exception of a service to its caller: as itself if it is one of Étude's own, otherwise as ServiceFailed.

A ClusterError raised inside a service (because it lost a service that it had called) arrives as ServiceFailed too:
ServiceDied must always mean that the called service itself died.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from etude.cluster.contract import ClusterError, ServiceFailed


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a service's method raised, sent to the caller in place of a result."""

    type: str
    message: str
    traceback: str
    pickled: bytes | None
    """The pickled exception; None if it must be raised as ServiceFailed."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind = type(error)
        return cls(
            type=f"{kind.__module__}.{kind.__qualname__}",
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
            pickled=_pickled(error) if kind.__module__.startswith("etude.") else None,
        )

    def exception(self, name: str, method: str) -> Exception:
        """Return the exception to raise in the caller. `name` and `method` say which call failed."""
        if self.pickled is not None:
            error: Exception = pickle.loads(self.pickled)
            return error
        return ServiceFailed(f"{name}.{method} raised {self.type}: {self.message}\n{self.traceback}")


def _pickled(error: BaseException) -> bytes | None:
    """Return the pickled error; None for a ClusterError, a non-Exception (SystemExit), or what cannot be pickled."""
    if isinstance(error, ClusterError) or not isinstance(error, Exception):
        return None
    try:
        raw = pickle.dumps(error)
        same = type(pickle.loads(raw)) is type(error)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError):
        return None  # not picklable, for example because the constructor does not accept the exception's own args
    return raw if same else None
