"""The owner's end of a box's socket: many requests under way at once, each with its own answer or SandboxLost."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

from etude.sandbox.contract import DiskFull, RequestRefused, SandboxError, SandboxLost
from etude.sandbox.inside import wire

Answer = tuple[wire.Header, bytes]


class Channel(asyncio.Protocol):
    def __init__(self, box: str) -> None:
        self.box = box
        self.ready: asyncio.Future[wire.Header] = asyncio.get_running_loop().create_future()
        self.lost = False
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._frames = wire.Unpacker()
        self._tickets = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for header, payload in self._frames.feed(data):
            if "ticket" not in header:
                if not self.ready.done():
                    self.ready.set_result(header)
            elif (future := self._waiting.pop(header["ticket"], None)) and not future.done():
                future.set_result((header, payload))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.ready.done():
            self.ready.set_result({"ready": False, "error": "it ended while it was being made", "step": "lost"})
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxLost(f"box {self.box} ended; it cannot be used again, make a new one"))
        self._waiting.clear()

    async def request(self, header: wire.Header, payload: bytes = b"", *, patience: float) -> Answer:
        """Sends and waits. An answer that reports an error raises it under its own type."""
        if self.lost or self._transport is None:
            raise SandboxLost(f"box {self.box} has ended; it cannot be used again, make a new one")
        self._tickets += 1
        ticket = self._tickets
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._transport.write(wire.pack({**header, "ticket": ticket}, payload))
        try:
            answer, body = await asyncio.wait_for(future, patience)
        except TimeoutError:
            self.close()
            raise SandboxLost(
                f"box {self.box} did not answer {header['op']} in {patience:.0f} s; it is given up"
            ) from None
        except asyncio.CancelledError:
            if header["op"] == "exec" and not self.lost:
                self._transport.write(wire.pack({"op": "cancel", "ticket": 0, "command": ticket}))
            raise
        finally:
            self._waiting.pop(ticket, None)
        if "error" in answer:
            raise _typed(answer, self.box, header)
        return answer, body

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _typed(answer: wire.Header, box: str, header: wire.Header) -> Exception:
    """The file errors keep Python's own types; everything else is the contract's."""
    kind, text = answer["kind"], f"box {box}: {answer['error']}"
    if kind == "refused":
        return RequestRefused(text)
    if kind == "disk_full":
        return DiskFull(f"{text}: the box may add disk_mb to its image")
    number: Any = getattr(errno, kind, errno.EIO)
    built: OSError = OSError(number, os.strerror(number), header.get("path", ""))
    known = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
    return built if isinstance(built, known) else SandboxError(f"{text} ({kind})")
