"""Direct calls between processes of one machine, over a unix socket in the cluster's private folder.

They exist because calls through ray cost much CPU time, and a rollout makes about a dozen calls. A direct call takes a
twentieth of that time, counting caller and service together (benchmarks/calls.py).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

HEAD = struct.Struct(">QQ")
"""Header of a frame: the call's number, and the length of the body in bytes."""
BACKLOG = 4096
"""Maximum number of connections to a socket that wait to be accepted. Further ones fail as if nobody listened."""


class Session(Protocol):
    """Answers the calls that arrive on one connection."""

    async def reply(self, body: bytes) -> bytes: ...

    def end(self) -> None:
        """Called once, when the connection is lost."""
        ...


class ConnectionLost(Exception):
    """The process at the other end is gone, or never existed."""


class _Frames(asyncio.Protocol):
    """Base of both ends of a connection: sends and receives frames. A frame holds one call or one answer."""

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
        """Send a frame. It is dropped silently if the connection is closing, since `connection_lost` reports that."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines((HEAD.pack(number, len(body)), body))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def receive(self, number: int, body: bytes) -> None:
        raise NotImplementedError


class _ServerConnection(_Frames):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._calls: set[asyncio.Task[None]] = set()
        """Running calls. Asyncio holds tasks only weakly, so without this they could be garbage-collected."""

    def receive(self, number: int, body: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(number, body))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _serve(self, number: int, body: bytes) -> None:
        self.send(number, await self._session.reply(body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.end()


class CallerConnection(_Frames):
    """The caller's end, for any number of concurrent calls. It belongs to the event loop that opened it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.lost = False
        self._calls = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    @classmethod
    async def open(cls, socket_path: str) -> CallerConnection:
        """Connect to a service. Raise ConnectionLost if none listens at this path."""
        try:
            _, connection = await asyncio.get_running_loop().create_unix_connection(cls, socket_path)
        except OSError as error:
            raise ConnectionLost(f"nobody answers at {socket_path}: {error}") from error
        return connection

    async def ask(self, body: bytes) -> bytes:
        """Return the answer to a pickled call. Raise ConnectionLost if the service's process ends first."""
        if self.lost:
            raise ConnectionLost("its process is gone")
        self._calls += 1
        number = self._calls
        reply: asyncio.Future[bytes] = self.loop.create_future()
        self._waiting[number] = reply
        try:
            self.send(number, body)
            return await reply
        finally:
            del self._waiting[number]

    def tell(self, body: bytes) -> None:
        """Send a call whose answer nobody waits for."""
        self._calls += 1
        self.send(self._calls, body)

    def drop(self) -> None:
        """Close the connection. May be called from any thread, since the garbage collector does so."""
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            self.loop.call_soon_threadsafe(self.close)

    def receive(self, number: int, body: bytes) -> None:
        # There is no future for a call that its caller has given up.
        reply = self._waiting.get(number)
        if reply is not None and not reply.done():
            reply.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(ConnectionLost("its process is gone"))


async def serve(where: str | socket.socket, new_session: Callable[[], Session]) -> asyncio.Server:
    """Listen on a unix socket, given by its path or already bound, and open a session for every connection."""
    loop = asyncio.get_running_loop()
    place: dict[str, Any] = {"path": where} if isinstance(where, str) else {"sock": where}
    # asyncio listens again, with its own backlog of 100 unless told otherwise.
    return await loop.create_unix_server(lambda: _ServerConnection(new_session()), **place, backlog=BACKLOG)
