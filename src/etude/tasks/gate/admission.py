"""Limits how many gradings run at once, and groups those that need a busy machine, which slows everything else.

Invariant: nobody waits for a busy machine while a place is free that no other kind of grading wants.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from etude.tasks.gate.busy_machine import Busy

TOGETHER = 4
"""Gradings, per place, that must be waiting for a busy machine before it is their turn."""


class Turns:
    """The turns of one event loop."""

    def __init__(self, places: int = 4, together: int = 0) -> None:
        self.places, self.together = places, together or TOGETHER * places
        self._free = places
        self._waiting: dict[bool, deque[asyncio.Future[None]]] = {False: deque(), True: deque()}
        self._busy_now = False
        self._load = Busy()

    @property
    def begun(self) -> int:
        """How many gradings to start at a time: those with a place, plus those collected for a busy machine."""
        return self.places + self.together

    @asynccontextmanager
    async def turn(self, *, busy: bool = False) -> AsyncIterator[None]:
        mine = asyncio.get_running_loop().create_future()
        self._waiting[busy].append(mine)
        self._serve()
        try:
            await mine
            yield
        finally:
            if not mine.cancelled():
                self._leave(busy)

    def _leave(self, busy: bool) -> None:
        self._free += 1
        self._serve()
        if busy:  # After the next turn has begun, so that the machine is not idle in between.
            self._load.end()

    def _serve(self) -> None:
        quiet, busy = self._waiting[False], self._waiting[True]
        while self._free and (quiet or busy):
            # Once the machine is busy, it stays busy until nobody waits for that any more.
            self._busy_now = bool(busy) and (self._busy_now or not quiet or len(busy) >= self.together)
            mine = (busy if self._busy_now else quiet).popleft()
            if mine.done():
                continue  # This waiter was cancelled.
            if self._busy_now:
                self._load.begin()
            self._free -= 1
            mine.set_result(None)
