"""The connection from the process that owns a box to the box's pid 1. Many requests can be in progress at once; each
gets its own answer or raises SandboxLost.

Invariant: what pid 1 sends is checked before it is used. A pid 1 that sends anything but its protocol loses its box,
and disturbs nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from etude.sandbox.contract import DiskFull, RequestRefused, SandboxError, SandboxLost
from etude.sandbox.inside import wire

Answer = tuple[wire.Header, bytes]
OnFrame = Callable[[wire.Header, bytes], None]
Fields = Mapping[str, tuple[type, ...]]
"""Fields that a header must have, with their possible types."""
ANSWER_SECONDS = 30.0
"""Time for pid 1 to answer any request other than a command; after that, the box counts as lost."""
NO_FIELDS: Fields = MappingProxyType({})
NUMBER = (int, float)
_ERROR: Fields = {"error": (str,), "kind": (str,)}
_FAILED: Fields = {"error": (str,), "step": (str,)}
_END: Fields = {"end": (int,), "first": (int,), "limit": (str,)}
_CANCELLABLE = ("exec", "start", "poll")
"""Operations that pid 1 is asked to cancel if the caller no longer waits."""


class Channel(asyncio.Protocol):
    def __init__(self, box: str) -> None:
        self.box = box
        self.ready: asyncio.Future[wire.Header] = asyncio.get_running_loop().create_future()
        self.lost = False
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._listeners: dict[int, tuple[str, OnFrame]] = {}
        """Ticket of a request -> (the kind of frames, "stream" or "end", that it gets besides its answer; the function
        to call with each of these frames)."""
        self._frames = wire.Unpacker()
        self._tickets = 0
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        """Why this process gave the box up; empty if it did not."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.lost or self._reason:
            return
        try:
            for header, payload in self._frames.feed(data):
                self._take(header, payload)
        except wire.BrokenFrame as error:
            self._reason = f"its pid 1 broke the protocol ({error})"
            self.close()

    def _take(self, header: wire.Header, payload: bytes) -> None:
        """Pass a frame on to whoever waits for it. Raise BrokenFrame if pid 1 never sends such a frame."""
        ticket = header.get("ticket")
        if ticket is None:
            if header.get("ready") is not True:
                _require(header, _FAILED)
            if not self.ready.done():
                self.ready.set_result(header)
            return
        _require(header, {"ticket": (int,)})
        if "stream" in header:
            if header["stream"] not in (1, 2):
                raise wire.BrokenFrame(f"output of stream {header['stream']!r}")
            self._call_listener(ticket, "stream", header, payload)
        elif "end" in header:
            _require(header, _END)
            self._call_listener(ticket, "end", header, payload)
            self._listeners.pop(ticket, None)
        elif (future := self._waiting.pop(ticket, None)) and not future.done():
            future.set_result((header, payload))

    def _call_listener(self, ticket: int, kind: str, header: wire.Header, payload: bytes) -> None:
        """Pass a frame to the listener of this request. If it raises an exception, only this request fails, not the
        connection."""
        if ticket not in self._listeners:
            return
        expected, on_frame = self._listeners[ticket]
        if kind != expected:
            raise wire.BrokenFrame(f"a frame with {kind!r} for a request that gets some with {expected!r}")
        try:
            on_frame(header, payload)
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
            reason = self._reason or "it ended while it was being made"
            self.ready.set_result({"ready": False, "error": reason, "step": "lost"})
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._loss())
        self._waiting.clear()

    def _loss(self) -> SandboxLost:
        how = f": {self._reason}" if self._reason else " ended"
        return SandboxLost(f"box {self.box}{how}; it cannot be used again, make a new one")

    def next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def listen(self, ticket: int, kind: str, on_frame: OnFrame) -> None:
        """Call `on_frame` for the frames of this request that are not its answer. `kind` is "stream" for the output of
        a command, or "end" for its end, after which the listener is removed."""
        self._listeners[ticket] = kind, on_frame

    def ignore(self, ticket: int) -> None:
        self._listeners.pop(ticket, None)

    async def request(
        self,
        header: wire.Header,
        payload: bytes = b"",
        *,
        patience: float,
        ticket: int | None = None,
        fields: Fields = NO_FIELDS,
    ) -> Answer:
        """Send a request and wait at most `patience` seconds for its answer, which must have these `fields`. If it is
        an error, raise the matching exception."""
        if self.lost or self._transport is None:
            raise SandboxLost(f"box {self.box} has ended; it cannot be used again, make a new one")
        ticket = ticket or self.next_ticket()
        head = wire.head({**header, "ticket": ticket}, len(payload))
        if len(head) > wire.MAX_HEADER:
            raise RequestRefused(f"box {self.box}: the names in a request take {len(head)} bytes: send fewer at a time")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._transport.write(head + payload)
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
        failed = "error" in answer
        if not _has(answer, _ERROR if failed else fields):
            raise self.misbehaved(header["op"])
        if failed:
            raise _exception_for(answer, self.box, header)
        return answer, body

    def misbehaved(self, operation: str) -> SandboxLost:
        """Give the box up, since pid 1 has answered an operation with something that is no answer to it. Return the
        exception to raise."""
        self._reason = f"its pid 1 answered {operation} with something that is no answer"
        self.close()
        return self._loss()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _has(header: wire.Header, fields: Fields) -> bool:
    # The exact type, since JSON's true and false would pass for numbers.
    return all(type(header.get(name)) in kinds for name, kinds in fields.items())


def _require(header: wire.Header, fields: Fields) -> None:
    if not _has(header, fields):
        raise wire.BrokenFrame(f"a header without {', '.join(fields)}: it has {', '.join(list(header)[:5])[:80]}")


def _exception_for(answer: wire.Header, box: str, header: wire.Header) -> Exception:
    """Return the exception for an error that pid 1 answered. Common file errors get Python's own exception types, all
    others a type from contract.py."""
    kind, text = answer["kind"], f"box {box}: {wire.printable(answer['error'])}"
    if kind == "refused":
        return RequestRefused(text)
    if kind == "disk_full":
        return DiskFull(f"{text}: the box may add disk_mb to its image")
    number = getattr(errno, kind, None)
    if not isinstance(number, int):
        return SandboxError(f"{text} ({kind})")
    built: OSError = OSError(number, os.strerror(number), header.get("path", ""))
    known = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
    return built if isinstance(built, known) else SandboxError(f"{text} ({kind})")
