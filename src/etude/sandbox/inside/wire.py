"""Frames on the connection between a box's pid 1 and the owner process: two lengths, a JSON header, and a binary
payload. Both ends use these functions."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections import deque

# Nothing in `inside` imports `typing` at run time, dataclasses, pathlib or shutil. Every box's pid 1 is a copy of the
# zygote, and with fewer modules loaded it is made faster and needs less memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Header = dict[str, Any]
else:
    Header = dict

LENGTHS = struct.Struct("!II")
MAX_FRAME, MAX_HEADER = 1 << 30, 64 << 20
"""Maximum bytes of a frame and of its header. The largest header names the files of a tree: 4 Mi characters (trees.py),
each up to 12 bytes in JSON."""
MAX_ORDER = 120 << 10
"""Maximum bytes of a message to or from the zygote. Receiving allocates a buffer of this size: from 128 KiB on, malloc
would ask the kernel for memory anew for each."""


_LONGEST_LINE = 4000


def printable(text: str) -> str:
    """Return a text as one line that every terminal, log and file can take: escaped, and cut if it is very long. A box
    may have named anything in the text."""
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[:_LONGEST_LINE])
    return f"{shown}..." if len(text) > _LONGEST_LINE else shown


class BrokenFrame(Exception):
    """The peer announces a frame of more than MAX_FRAME bytes or a header of more than MAX_HEADER, or the header of a
    frame is no JSON object. The connection cannot be used any more."""


def head(header: Header, payload_size: int) -> bytes:
    """Return the bytes of a frame that precede its payload."""
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(encoded), payload_size) + encoded


def pack(header: Header, payload: bytes = b"") -> bytes:
    return head(header, len(payload)) + payload


class Unpacker:
    """Splits a stream of bytes into frames, whatever the sizes of the pieces in which the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Header, bytes]]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(self._buffer)
            if head > MAX_HEADER or head + body > MAX_FRAME:
                raise BrokenFrame(
                    f"a frame of {head} + {body} bytes; at most {MAX_HEADER} and {MAX_FRAME} are possible"
                )
            end = LENGTHS.size + head + body
            if len(self._buffer) < end:
                break
            header = _read(bytes(self._buffer[LENGTHS.size : LENGTHS.size + head]))
            frames.append((header, bytes(self._buffer[LENGTHS.size + head : end])))
            del self._buffer[:end]
        return frames


def _read(encoded: bytes) -> Header:
    try:
        header = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"a header that is no JSON: {encoded[:40]!r}") from error
    if not isinstance(header, dict):
        raise BrokenFrame(f"a header that is no JSON object: {encoded[:40]!r}")
    return header


class Sender:
    """Sends frames over a non-blocking descriptor, so that a peer that does not read never blocks the sender."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._queue: deque[memoryview] = deque()
        os.set_blocking(number, False)

    def put(self, header: Header, payload: bytes | bytearray = b"") -> bool:
        """Send as much as possible. Return False if the rest needs `flush` once the descriptor is writable."""
        self._queue.append(memoryview(head(header, len(payload))))
        if payload:
            self._queue.append(memoryview(payload))
        return self.flush()

    def flush(self) -> bool:
        """Send the queued bytes, as far as the peer takes them now. Return False if some bytes are left. Raises OSError
        (EPIPE, ECONNRESET) if the peer has closed."""
        while self._queue:
            try:
                sent = os.writev(self.number, list(self._queue)[:16])
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                return False  # Killed processes have not yet freed the memory that sending needs.
            while self._queue and sent >= len(self._queue[0]):
                sent -= len(self._queue.popleft())
            if self._queue:
                self._queue[0] = self._queue[0][sent:]
        return True
