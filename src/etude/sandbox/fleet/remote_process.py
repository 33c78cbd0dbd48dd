"""Client of a background command that runs in a box on another host.

No output is lost if the caller of a poll is cancelled: the poll is cancelled on the host too, and output that it had
already taken is kept here for the next poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from etude.sandbox.contract import Poll, SandboxError, SandboxLost


class RemoteProcess:
    def __init__(self, call: Callable[..., Awaitable[Any]], box: str, id: int) -> None:
        """`call` sends a request to the host of the box. `id` is the command's id on that host."""
        self.id = id
        self._call, self._box = call, box
        self._given_up: set[asyncio.Task[Any]] = set()
        self._left, self._left_skipped = b"", 0
        self._end: Poll | None = None

    async def poll(self, *, wait: float = 0.0) -> Poll:
        if self._given_up:
            await asyncio.wait(self._given_up)
        ticket = secrets.token_hex(8)
        asking = asyncio.ensure_future(self._ask_poll(ticket, 0.0 if self._left else wait))
        try:
            polled = await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._give_up(asking, self._keep)
            self._give_up(asyncio.ensure_future(self._call("cancel", ticket)), _forget)
            raise
        if polled.code is not None:
            self._end = Poll(b"", 0, polled.code, polled.limit)
        output, self._left = self._left + polled.output, b""
        skipped, self._left_skipped = self._left_skipped + polled.skipped, 0
        return Poll(output, skipped, polled.code, polled.limit)

    async def _ask_poll(self, ticket: str, wait: float) -> Poll:
        """Poll the command on its host for up to `wait` seconds. `cancel` ends the poll there by its `ticket`."""
        try:
            polled = await self._call("poll", self._box, self.id, ticket, wait, patience=wait)
        except SandboxLost:
            if self._end is None:
                raise
            polled = self._end  # The box is lost, but this command was known to have ended before.
        return polled or Poll(b"", 0, None)

    def _give_up(self, task: asyncio.Task[Any], then: Any) -> None:
        """After a cancelled poll, let `task` (the poll, or the call that cancels it on the host) finish and call
        `then`. The next poll waits for it."""
        self._given_up.add(task)
        task.add_done_callback(then)
        task.add_done_callback(self._given_up.discard)

    def _keep(self, asking: asyncio.Task[Poll]) -> None:
        with contextlib.suppress(SandboxError, asyncio.CancelledError):
            polled = asking.result()
            self._left += polled.output
            self._left_skipped += polled.skipped

    async def write(self, data: bytes) -> None:
        await self._ask("write", data)

    async def close_stdin(self) -> None:
        await self._ask("close_stdin")

    async def resize(self, rows: int, columns: int) -> None:
        await self._ask("resize", rows, columns)

    async def kill(self) -> None:
        await self._ask("kill")

    async def _ask(self, method: str, *args: Any) -> None:
        await self._call("ask_process", self._box, self.id, method, args)


def _forget(cancelling: asyncio.Task[Any]) -> None:
    """Ignore an error of the call that cancels a poll. What makes it fail makes the poll fail too."""
    with contextlib.suppress(SandboxError, asyncio.CancelledError):
        cancelling.result()
