"""The connection from the process that owns a box to the box's pid 1. Many requests can be in progress at once; each
gets its own answer or raises SandboxLost."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

from etude.sandbox.contract import DiskFull, RequestRefused, SandboxError, SandboxLost
from etude.sandbox.inside import wire

Answer = tuple[wire.Header, bytes]
OnFrame = Callable[[wire.Header, bytes], None]
ANSWER_SECONDS = 30.0
"""Time for pid 1 to answer any request other than a command; after that, the box counts as lost."""
_CANCELLABLE = ("exec", "start", "poll")
"""Operations that pid 1 is asked to cancel if the caller no longer waits."""


class Channel(asyncio.Protocol):
    def __init__(self, box: str) -> None:
        self.box = box
        self.ready: asyncio.Future[wire.Header] = asyncio.get_running_loop().create_future()
        self.lost = False
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._listeners: dict[int, OnFrame] = {}
        self._frames = wire.Unpacker()
        self._tickets = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for header, payload in self._frames.feed(data):
            ticket = header.get("ticket")
            if ticket is None:
                if not self.ready.done():
                    self.ready.set_result(header)
            elif "stream" in header:
                self._call_listener(ticket, header, payload)
            elif "end" in header:
                self._call_listener(ticket, header, payload)
                self._listeners.pop(ticket, None)
            elif (future := self._waiting.pop(ticket, None)) and not future.done():
                future.set_result((header, payload))

    def _call_listener(self, ticket: int, header: wire.Header, payload: bytes) -> None:
        """Pass a frame to the listener of this request. If it raises an exception, only this request fails, not the
        connection."""
        if ticket not in self._listeners:
            return
        try:
            self._listeners[ticket](header, payload)
        except Exception as error:  # noqa: BLE001  # Every error is raised to the caller of the request.
            del self._listeners[ticket]
            if (future := self._waiting.get(ticket)) and not future.done():
                future.set_exception(error)
            self._cancel(ticket)

    def _cancel(self, ticket: int) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(wire.pack({"op": "cancel", "ticket": 0, "command": ticket}))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.ready.done():
            self.ready.set_result({"ready": False, "error": "it ended while it was being made", "step": "lost"})
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxLost(f"box {self.box} ended; it cannot be used again, make a new one"))
        self._waiting.clear()

    def next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def listen(self, ticket: int, on_frame: OnFrame) -> None:
        """Call `on_frame` for the frames of this request that are not its answer: output of the command, and its end,
        after which the listener is removed."""
        self._listeners[ticket] = on_frame

    def ignore(self, ticket: int) -> None:
        self._listeners.pop(ticket, None)

    async def request(
        self, header: wire.Header, payload: bytes = b"", *, patience: float, ticket: int | None = None
    ) -> Answer:
        """Send a request and wait at most `patience` seconds for its answer. If that is an error, raise the matching
        exception."""
        if self.lost or self._transport is None:
            raise SandboxLost(f"box {self.box} has ended; it cannot be used again, make a new one")
        ticket = ticket or self.next_ticket()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._transport.write(wire.pack({**header, "ticket": ticket}, payload))
        try:
            async with asyncio.timeout(patience):
                answer, body = await future
        except TimeoutError:
            if future.cancelled():
                self.close()
                raise SandboxLost(
                    f"box {self.box} did not answer {header['op']} in {patience:.0f} s; it is given up"
                ) from None
            answer, body = future.result()  # The answer arrived at the same moment, or a listener raised TimeoutError.
        except asyncio.CancelledError:
            if header["op"] in _CANCELLABLE:
                self._cancel(ticket)
            raise
        finally:
            self._waiting.pop(ticket, None)
        if "error" in answer:
            raise _exception_for(answer, self.box, header)
        return answer, body

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _exception_for(answer: wire.Header, box: str, header: wire.Header) -> Exception:
    """File errors get Python's own exception types, all others a type from contract.py."""
    kind, text = answer["kind"], f"box {box}: {wire.printable(answer['error'])}"
    if kind == "refused":
        return RequestRefused(text)
    if kind == "disk_full":
        return DiskFull(f"{text}: the box may add disk_mb to its image")
    number: Any = getattr(errno, kind, errno.EIO)
    built: OSError = OSError(number, os.strerror(number), header.get("path", ""))
    known = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
    return built if isinstance(built, known) else SandboxError(f"{text} ({kind})")
