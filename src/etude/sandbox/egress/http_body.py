"""Passes the bodies of HTTP/1.1 messages on piece by piece, so that memory use does not depend on their length."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TypeVar

from etude.sandbox.egress.http_head import MAX_HEAD, BadHead, Framing

T = TypeVar("T")
PIECE = 1 << 16
STALL_SECONDS = 60.0
"""A transfer fails if no byte can be read or written for this many seconds."""
_MOST_TRAILERS = 64
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")


class BrokenTransfer(Exception):
    """Before a message was complete, the peer closed the connection, stalled, or violated the message's framing."""


async def read_head(reader: asyncio.StreamReader, *, idle: float, patience: float) -> bytes:
    """Read a message's head through its empty line. Return no bytes if the peer left, or sent nothing for `idle`
    seconds. Once begun, the head must be complete within `patience` seconds."""
    try:
        async with asyncio.timeout(idle):
            first = await reader.read(1)
    except (OSError, TimeoutError):
        return b""
    try:
        async with asyncio.timeout(patience):
            return first + await reader.readuntil(b"\r\n\r\n") if first else b""
    except TimeoutError:
        raise BadHead(f"a head that was not whole after {patience:.0f} s", 408) from None
    except asyncio.LimitOverrunError:
        raise BadHead(f"a head of more than {MAX_HEAD} bytes", 431) from None
    except (OSError, EOFError):
        raise BrokenTransfer("the peer left in the middle of a head") from None


async def pieces(reader: asyncio.StreamReader, framing: Framing) -> AsyncIterator[bytes]:
    """Yield the bytes of a message's body, without chunk sizes and trailers."""
    if framing.chunked:
        while size := await _chunk_size(reader):
            async for piece in _counted(reader, size):
                yield piece
            if await _line(reader) != b"\r\n":
                raise BrokenTransfer("a chunk that is longer than it says")
        for _ in range(_MOST_TRAILERS):  # Trailers are read and dropped.
            if await _line(reader) == b"\r\n":
                return
        raise BrokenTransfer("trailers without end")
    if framing.length is None:
        while piece := await _some(reader, PIECE):
            yield piece
        return
    async for piece in _counted(reader, framing.length):
        yield piece


async def send_body(writer: asyncio.StreamWriter, body: AsyncIterator[bytes], *, chunked: bool) -> None:
    """Write a body as it arrives. The next piece is read only when the writer's buffer has room again."""
    async for piece in body:
        writer.writelines((b"%x\r\n" % len(piece), piece, b"\r\n") if chunked else (piece,))
        await flush(writer)
    if chunked:
        writer.write(b"0\r\n\r\n")
        await flush(writer)


async def flush(writer: asyncio.StreamWriter) -> None:
    """Wait until the writer's buffer has room again. Raise BrokenTransfer if the peer stalls."""
    await _in_time(writer.drain())


async def close(writer: asyncio.StreamWriter) -> None:
    """Send what is left and close a connection, or abort it if that takes longer than a second."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            await writer.wait_closed()
    cut(writer)


def cut(writer: asyncio.StreamWriter) -> None:
    with suppress(AttributeError):  # Some versions of asyncio's TLS cannot abort a connection that is already closed.
        writer.transport.abort()


async def _counted(reader: asyncio.StreamReader, count: int) -> AsyncIterator[bytes]:
    while count:
        piece = await _some(reader, min(count, PIECE))
        if not piece:
            raise BrokenTransfer(f"{count} bytes short of the declared length")
        count -= len(piece)
        yield piece


async def _some(reader: asyncio.StreamReader, most: int) -> bytes:
    return await _in_time(reader.read(most))


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    match = _CHUNK_LINE.fullmatch(await _line(reader))
    if match is None:
        raise BrokenTransfer("no size of a chunk")
    return int(match[1], 16)


async def _line(reader: asyncio.StreamReader) -> bytes:
    return await _in_time(reader.readuntil(b"\r\n"))


async def _in_time(step: Awaitable[T]) -> T:
    """Run one step of a transfer. Raise BrokenTransfer for every way in which it can fail."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await step
    except TimeoutError:
        raise BrokenTransfer(f"nothing moved for {STALL_SECONDS:.0f} s") from None
    except asyncio.LimitOverrunError:
        raise BrokenTransfer("a line without end") from None
    except (OSError, EOFError) as error:
        raise BrokenTransfer(f"the connection ended: {error}") from error
