"""A background command of a folder box. Its output is kept until the next poll; if too much output waits, the oldest
bytes are dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from etude.sandbox.contract import Poll, RequestRefused, SandboxLost
from etude.sandbox.modes.runner_client import CommandRun

_CHUNK = 1 << 16
_WAITING = 1 << 20
"""Maximum number of bytes, written to a command's stdin, that the command has not read yet."""


class FolderProcess:
    def __init__(
        self, run: CommandRun, timeout: float, room: int, over: Callable[[], None], check: Callable[[], None]
    ) -> None:
        """End `run` after `timeout` seconds, and keep at most `room` bytes of output between polls. `over` is called
        once it has ended. `check` raises SandboxLost if the box is gone."""
        self.id = run.process.pid
        self._run, self._room, self._over, self._check = run, room, over, check
        self._output, self._skipped = bytearray(), 0
        self._news = asyncio.Event()
        self._code: int | None = None
        self._limit = ""
        self._clock = asyncio.get_running_loop().call_later(timeout, run.end, "time")
        self._task = asyncio.create_task(self._attend())

    async def _attend(self) -> None:
        assert self._run.process.stdout is not None
        while data := await self._run.process.stdout.read(_CHUNK):
            self._output += data
            if (excess := len(self._output) - self._room) > 0:
                del self._output[:excess]
                self._skipped += excess
            self._news.set()
        with contextlib.suppress(SandboxLost):
            self._code, self._limit = await self._run.result()
        self._code = 137 if self._code is None else self._code
        self._clock.cancel()
        self._over()
        self._news.set()

    async def poll(self, *, wait: float = 0.0) -> Poll:
        self._check()
        if not self._output and self._code is None:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()
            self._check()
        taken, skipped = bytes(self._output), self._skipped
        self._output.clear()
        self._skipped = 0
        return Poll(taken, skipped, self._code, self._limit)

    async def write(self, data: bytes) -> None:
        self._check()
        stdin = self._run.process.stdin
        assert stdin is not None
        if self._code is not None or stdin.is_closing():
            raise RequestRefused("the command has ended or its stdin is closed")
        if stdin.transport.get_write_buffer_size() + len(data) > _WAITING:
            raise RequestRefused(f"the command reads so slowly that more than {_WAITING} bytes would wait")
        stdin.write(data)
        await asyncio.sleep(0)

    async def close_stdin(self) -> None:
        assert self._run.process.stdin is not None
        self._run.process.stdin.close()

    async def resize(self, rows: int, columns: int) -> None:
        raise RequestRefused(f"the command has no terminal to make {rows} by {columns}")

    async def kill(self) -> None:
        self._run.end("killed")
        await self._task
