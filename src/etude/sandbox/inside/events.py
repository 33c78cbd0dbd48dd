"""A single-threaded event loop that calls callbacks for descriptors that become readable or writable.

If a callback closes a descriptor and its number is reused within the same round, the new descriptor's callback may be
called although nothing is there. So every callback must use non-blocking reads and accept that there is nothing to
read.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable


class Events:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._paused: list[tuple[float, int, Callable[[], None]]] = []
        """(monotonic time at which reading goes on, descriptor, reader)"""

    def read(self, number: int, callback: Callable[[], None]) -> None:
        self._readers[number] = callback
        self._register(number)

    def write(self, number: int, callback: Callable[[], None]) -> None:
        self._writers[number] = callback
        self._register(number)

    def done_writing(self, number: int) -> None:
        if self._writers.pop(number, None) is not None:
            self._register(number)

    def forget(self, number: int) -> None:
        """Stop watching the descriptor, if it is watched. Call this before closing it."""
        self._paused = [each for each in self._paused if each[1] != number]
        reader, writer = self._readers.pop(number, None), self._writers.pop(number, None)
        if reader or writer:
            self._register(number)

    def pause_reading(self, number: int, seconds: float) -> None:
        self._paused.append((time.monotonic() + seconds, number, self._readers.pop(number)))
        self._register(number)

    def _register(self, number: int) -> None:
        wanted = select.POLLIN * (number in self._readers) | select.POLLOUT * (number in self._writers)
        if wanted:
            self._poll.register(number, wanted)
        else:
            self._poll.unregister(number)

    def wait(self, milliseconds: int | None) -> bool:
        """Wait at most `milliseconds` (None: without limit) for an event, and call all callbacks that are due. Return
        whether there was an event."""
        if self._paused:
            left = max(0, int(1000 * (min(until for until, _, _ in self._paused) - time.monotonic())) + 1)
            milliseconds = left if milliseconds is None else min(milliseconds, left)
        found = self._poll.poll(milliseconds)
        now = time.monotonic()
        for until, number, reader in list(self._paused):
            if until <= now:
                self._paused.remove((until, number, reader))
                self.read(number, reader)
        for number, event in found:
            if event & ~select.POLLOUT and number in self._readers:
                self._readers[number]()
            if event & ~select.POLLIN and number in self._writers:
                self._writers[number]()
        return bool(found)
