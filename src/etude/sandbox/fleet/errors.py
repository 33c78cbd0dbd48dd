"""The error that a fleet adds to the errors of the sandbox contract."""

from __future__ import annotations

from etude.sandbox.contract import SandboxError


class FleetFull(SandboxError):
    """No host had room for the boxes in time; none were made. Ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.message, self.retry_after = message, retry_after

    def __str__(self) -> str:
        return f"{self.message}; try again in {self.retry_after:.0f} s"
