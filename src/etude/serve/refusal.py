"""Why a request is refused, or an answer cannot go on."""

from __future__ import annotations

from enum import StrEnum


class Problem(StrEnum):
    """Why a request is refused. Each protocol has its own status and name for it."""

    INVALID = "invalid"
    CONTEXT = "context"
    KEY = "key"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_PLACE = "unknown_place"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    KEY_BUSY = "key_busy"
    """This key has too many requests in flight."""
    BUSY = "busy"
    """The server has too many requests in flight."""
    ENDING = "ending"
    """The server is being stopped."""
    ENGINE = "engine"
    """The engine failed."""


class Refused(Exception):
    def __init__(self, problem: Problem, message: str, *, field: str = "", retry_after: float = 0.0) -> None:
        """`field` names the part of the request that is wrong; `retry_after` are seconds."""
        super().__init__(message)
        self.problem, self.message, self.field, self.retry_after = problem, message, field, retry_after
