"""A connection to a container's standard streams: an HTTP connection that the engine upgrades. Input is sent raw,
output arrives in frames.

Invariant: the container's stdout is passed on as it arrives, byte for byte, to `channel` (the protocol that talks to
the box's pid 1). So a frame of any size takes no memory. The last bytes of the container's stderr are kept, to report
why a box could not start.
"""

from __future__ import annotations

import asyncio
import struct

from etude.sandbox.contract import SandboxError, SandboxLost

_HEAD = struct.Struct("!BxxxI")
_STDOUT = 1
_KEPT_STDERR = 4000
_LONGEST_RESPONSE = 1 << 16
_ANSWER_SECONDS = 30.0


class Attachment(asyncio.Protocol):
    def __init__(self, container: str, channel: asyncio.Protocol) -> None:
        self.container = container
        self._channel = channel
        self._buffer = bytearray()
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._joined = False
        self._transport: asyncio.Transport | None = None
        self._stream = self._left = 0
        """The stream of the current frame, and how many of its bytes are still to come."""
        self._stderr = bytearray()

    @property
    def stderr_tail(self) -> str:
        return self._stderr.decode(errors="replace").strip()

    async def upgrade(self, path: str) -> None:
        """Ask the engine to connect the container's streams; return once they are connected."""
        assert self._transport is not None
        request = (
            f"POST {path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        )
        self._transport.write(request.encode())
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._upgraded
        except TimeoutError:
            raise SandboxLost(f"the engine did not join the streams of {self.container}") from None
        finally:
            if self._upgraded.cancelled() or self._upgraded.exception():
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._joined and not self._read_response():
            return
        while self._buffer:
            if not self._left:
                if len(self._buffer) < _HEAD.size:
                    return
                self._stream, self._left = _HEAD.unpack_from(self._buffer)
                del self._buffer[: _HEAD.size]
                continue
            payload = bytes(self._buffer[: self._left])
            del self._buffer[: self._left]
            self._left -= len(payload)
            if self._stream == _STDOUT:
                self._channel.data_received(payload)
            else:
                self._stderr = (self._stderr + payload)[-_KEPT_STDERR:]

    def _read_response(self) -> bool:
        """Read the response to the upgrade once it is complete. Return whether the streams are connected."""
        if self._upgraded.done():  # The engine has refused.
            self._buffer.clear()
            return False
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            if len(self._buffer) > _LONGEST_RESPONSE:
                self._upgraded.set_exception(SandboxError(f"no streams of container {self.container}: no response"))
            return False
        status = head.split(b" ", 2)[1:2]
        if status not in ([b"101"], [b"200"]):
            text = (head.partition(b"\r\n")[0] + b" " + rest).decode(errors="replace").strip()
            self._upgraded.set_exception(SandboxError(f"no streams of container {self.container}: {text[:500]}"))
            return False
        self._buffer = bytearray(rest)
        self._joined = True
        self._upgraded.set_result(None)
        assert self._transport is not None
        self._channel.connection_made(self._transport)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._upgraded.done():
            self._upgraded.set_exception(SandboxLost(f"the engine closed the streams of {self.container}"))
        self._channel.connection_lost(exc)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()
