"""Descriptors, and what to do when one of them can be read or written: the whole event loop of a single thread.

A callback may be called once too often (its descriptor's number was closed and given away within one round), so it
reads without waiting and takes "nothing there" for an answer.
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
        """To be called before the descriptor is closed; it need not be known."""
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
        """One round: waits for the first event, at most so long, and calls everybody concerned."""
        for number, event in self._poll.poll(milliseconds):
            if event & ~select.POLLOUT and number in self._readers:
                self._readers[number]()
            if event & ~select.POLLIN and number in self._writers:
                self._writers[number]()
