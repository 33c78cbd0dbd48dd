"""A single-threaded event loop that calls callbacks for descriptors that become readable or writable.

If a callback closes a descriptor and its number is reused within the same round, the new descriptor's callback may be
called although nothing is there. So every callback must use non-blocking reads and accept that there is nothing to
read.
"""

from __future__ import annotations

import select
from collections.abc import Callable


class Events:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}

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
        reader, writer = self._readers.pop(number, None), self._writers.pop(number, None)
        if reader or writer:
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
        found = self._poll.poll(milliseconds)
        for number, event in found:
            if event & ~select.POLLOUT and number in self._readers:
                self._readers[number]()
            if event & ~select.POLLIN and number in self._writers:
                self._writers[number]()
        return bool(found)
