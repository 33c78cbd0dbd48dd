"""The context manager behind `Journal.waiting`: every wait has a deadline and names the process it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType


class WaitExpired(TimeoutError):
    """The deadline of a wait passed. The message names the waiting process, what it waited for, and how long."""

    def __init__(self, process: str, on: str, deadline: float) -> None:
        super().__init__(f"{process} waited {deadline:g} s for {on}, which did not answer")
        self.process, self.on, self.deadline = process, on, deadline

    def __reduce__(self) -> tuple[type[WaitExpired], tuple[str, str, float]]:
        return WaitExpired, (self.process, self.on, self.deadline)


class Waiting:
    """One wait for another process, measured and recorded; `async with` also enforces the deadline. Usable once."""

    def __init__(self, process: str, on: str, deadline: float, record: Callable[[dict[str, object]], None]) -> None:
        if deadline <= 0:
            raise ValueError(f"the wait for {on} needs a deadline above 0, found {deadline}")
        self.process, self.on, self.deadline = process, on, deadline
        self._record = record
        self._started = 0.0
        self._timeout: asyncio.Timeout | None = None

    def __enter__(self) -> Waiting:
        self._started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        seconds = time.monotonic() - self._started
        late = seconds > self.deadline or isinstance(error, TimeoutError)
        self._write(seconds, "late" if late else "failed" if error else "done")

    async def __aenter__(self) -> Waiting:
        self._started = time.monotonic()
        self._timeout = asyncio.timeout(self.deadline)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._timeout is not None
        expired = False
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            # asyncio raises this for its own deadline only; a TimeoutError of the body propagates unchanged.
            expired = True
        seconds = time.monotonic() - self._started
        if expired:
            self._write(seconds, "expired")
            raise WaitExpired(self.process, self.on, self.deadline) from error
        cancelled = isinstance(error, asyncio.CancelledError)
        self._write(seconds, "cancelled" if cancelled else "failed" if error else "done")

    def _write(self, seconds: float, outcome: str) -> None:
        self._record({"on": self.on, "seconds": round(seconds, 6), "deadline": self.deadline, "outcome": outcome})
