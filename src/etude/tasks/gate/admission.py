"""Limits how many gradings run at once. Gradings that need a busy machine run together, because the CPU load made for
them slows all other gradings.

Invariant: a grading that needs a busy machine never waits while a slot is free and no other grading wants that slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from etude.tasks.gate.busy_machine import CpuLoad

BUSY_BATCH = 4
"""Gradings that need a busy machine wait until there are this many of them per slot; then the CPU load starts. They
start earlier if a slot is free that no other grading wants."""


class GradingQueue:
    def __init__(self, slots: int = 4, busy_batch: int = 0) -> None:
        self.slots, self.busy_batch = slots, busy_batch or BUSY_BATCH * slots
        self._free = slots
        self._waiting: dict[bool, deque[asyncio.Future[None]]] = {False: deque(), True: deque()}
        self._busy_now = False
        self._load = CpuLoad()

    @property
    def started_at_once(self) -> int:
        """Number of tasks that the caller should work on at once: one per slot, plus as many as may be waiting for a
        busy machine. With fewer, slots would stay empty while those wait."""
        return self.slots + self.busy_batch

    @asynccontextmanager
    async def turn(self, *, busy: bool = False) -> AsyncIterator[None]:
        """Wait for a slot of the queue, and hold it during the with-block. With `busy`, spinning processes keep every
        core busy during the block."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting[busy].append(mine)
        self._start_waiting()
        try:
            await mine
            yield
        finally:
            if not mine.cancelled():
                self._free_slot(busy)

    def _free_slot(self, busy: bool) -> None:
        """Free a slot, start the next gradings, and then release the CPU load of a `busy` grading. With this order, the
        load does not stop between two gradings that need it."""
        self._free += 1
        self._start_waiting()
        if busy:
            self._load.end()

    def _start_waiting(self) -> None:
        quiet, busy = self._waiting[False], self._waiting[True]
        while self._free and (quiet or busy):
            # Once the machine is busy, it stays busy until no waiting grading needs that any more.
            self._busy_now = bool(busy) and (self._busy_now or not quiet or len(busy) >= self.busy_batch)
            mine = (busy if self._busy_now else quiet).popleft()
            if mine.done():
                continue  # This waiter was cancelled.
            if self._busy_now:
                self._load.begin()
            self._free -= 1
            mine.set_result(None)
