"""Direct calls between processes of one machine over a unix socket.

A call costs a twentieth of a call through ray, both sides together (benchmarks/calls.py), and a rollout makes about a
dozen. Ray still starts, finds and watches the services, and carries what this does not: streams, stored values, calls
to other machines. The socket lies in the cluster's private folder.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import cast

HEAD = struct.Struct(">QQ")
"""Header of a frame: the number of its call and the length of its body."""
Replying = Callable[[bytes], Awaitable[bytes]]


class LineLost(Exception):
    """The process at the other end is gone, or never existed."""


class _Frames(asyncio.Protocol):
    """A connection that sends and receives whole frames."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        begin = 0
        while len(self._buffer) - begin >= HEAD.size:
            number, length = HEAD.unpack_from(self._buffer, begin)
            body = begin + HEAD.size
            if len(self._buffer) < body + length:
                break
            begin = body + length
            self.receive(number, bytes(self._buffer[body:begin]))
        del self._buffer[:begin]

    def send(self, number: int, body: bytes) -> None:
        """Send a frame. Dropped silently if the connection is closing; `connection_lost` reports that it is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines((HEAD.pack(number, len(body)), body))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def receive(self, number: int, body: bytes) -> None:
        raise NotImplementedError


class _Desk(_Frames):
    """The service's end of one connection."""

    def __init__(self, reply: Replying) -> None:
        super().__init__()
        self._reply = reply
        self._calls: set[asyncio.Task[None]] = set()
        """Running calls. The reference keeps a task from being garbage-collected half-way."""

    def receive(self, number: int, body: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(number, body))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _serve(self, number: int, body: bytes) -> None:
        self.send(number, await self._reply(body))


class Line(_Frames):
    """The caller's end of a connection, for any number of concurrent calls. It belongs to the event loop that opened
    it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.lost = False
        self._calls = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    @classmethod
    async def open(cls, door: str) -> Line:
        try:
            _, line = await asyncio.get_running_loop().create_unix_connection(cls, door)
        except OSError as error:
            raise LineLost(f"nobody answers at {door}: {error}") from error
        return line

    async def ask(self, body: bytes) -> bytes:
        if self.lost:
            raise LineLost("its process is gone")
        self._calls += 1
        number = self._calls
        reply: asyncio.Future[bytes] = self.loop.create_future()
        self._waiting[number] = reply
        try:
            self.send(number, body)
            return await reply
        finally:
            del self._waiting[number]

    def receive(self, number: int, body: bytes) -> None:
        # Ignore the answer to a call that was given up.
        reply = self._waiting.get(number)
        if reply is not None and not reply.done():
            reply.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(LineLost("its process is gone"))


async def serve(door: str, reply: Replying) -> asyncio.Server:
    return await asyncio.get_running_loop().create_unix_server(lambda: _Desk(reply), door)
