"""A single-threaded event loop: callbacks for descriptors that become readable or writable.

A callback may be called once too often, if its descriptor was closed and its number reused within one round. So every
callback must read without blocking and accept that nothing is there.
"""

from __future__ import annotations

import contextlib
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
        """Stops watching the descriptor. Call it before closing; unknown descriptors are fine."""
        self._readers.pop(number, None)
        self._writers.pop(number, None)
        self._register(number)

    def _register(self, number: int) -> None:
        wanted = select.POLLIN * (number in self._readers) | select.POLLOUT * (number in self._writers)
        if wanted:
            self._poll.register(number, wanted)
        else:
            with contextlib.suppress(KeyError):
                self._poll.unregister(number)

    def wait(self, milliseconds: int | None) -> None:
        """Runs one round: waits for the first event, at most this long, and calls all callbacks that are due."""
        for number, event in self._poll.poll(milliseconds):
            if event & ~select.POLLOUT and number in self._readers:
                self._readers[number]()
            if event & ~select.POLLIN and number in self._writers:
                self._writers[number]()
