"""A background command on some host.

A poll that its caller gives up loses nothing: it is cancelled on the host, and what it had already taken is kept here
for the next poll.
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
        """`call` sends a request to the host of the box."""
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
            said = await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._give_up(asking, self._keep)
            self._give_up(asyncio.ensure_future(self._call("cancel", ticket)), _forget)
            raise
        if said.code is not None:
            self._end = Poll(b"", 0, said.code, said.limit)
        output, self._left = self._left + said.output, b""
        skipped, self._left_skipped = self._left_skipped + said.skipped, 0
        return Poll(output, skipped, said.code, said.limit)

    async def _ask_poll(self, ticket: str, wait: float) -> Poll:
        try:
            said = await self._call("poll", self._box, self.id, ticket, wait, patience=wait)
        except SandboxLost:
            if self._end is None:
                raise
            said = self._end  # Of a lost box, the known end of a command remains.
        return said or Poll(b"", 0, None)

    def _give_up(self, task: asyncio.Task[Any], then: Any) -> None:
        self._given_up.add(task)
        task.add_done_callback(then)
        task.add_done_callback(self._given_up.discard)

    def _keep(self, asking: asyncio.Task[Poll]) -> None:
        with contextlib.suppress(SandboxError, asyncio.CancelledError):
            said = asking.result()
            self._left += said.output
            self._left_skipped += said.skipped

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


def _forget(calling_back: asyncio.Task[Any]) -> None:
    """If cancelling the poll failed, so will the poll itself."""
    with contextlib.suppress(SandboxError, asyncio.CancelledError):
        calling_back.result()
