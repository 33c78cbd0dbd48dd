"""Frames on a stream: two lengths, a JSON header, a binary payload. Both ends use these functions."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections import deque

# Nothing in `inside` imports `typing` at run time, dataclasses, pathlib or shutil: every box's pid 1 is a copy of the
# zygote, and the less is loaded, the faster it is made and the smaller it stays.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Header = dict[str, Any]
else:
    Header = dict

LENGTHS = struct.Struct("!II")
MAX_FRAME = 1 << 30
MAX_ORDER = 120 << 10
"""Most bytes of a message from the owner to the zygote, or from there to a box. A slightly larger buffer would make
malloc ask the kernel for memory."""


class BrokenFrame(Exception):
    """The peer sent impossible lengths; the connection cannot be used any more."""


def head(header: Header, payload_size: int) -> bytes:
    """Everything of a frame but its payload."""
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(encoded), payload_size) + encoded


def pack(header: Header, payload: bytes = b"") -> bytes:
    return head(header, len(payload)) + payload


class Unpacker:
    """Cuts a stream of bytes into frames, however the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Header, bytes]]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(self._buffer)
            if head + body > MAX_FRAME:
                raise BrokenFrame(f"a frame of {head + body} bytes; at most {MAX_FRAME} are possible")
            end = LENGTHS.size + head + body
            if len(self._buffer) < end:
                break
            header = json.loads(bytes(self._buffer[LENGTHS.size : LENGTHS.size + head]))
            frames.append((header, bytes(self._buffer[LENGTHS.size + head : end])))
            del self._buffer[:end]
        return frames


class Sender:
    """Sends frames over a non-blocking descriptor: a peer that does not read blocks nobody."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._queue: deque[memoryview] = deque()
        os.set_blocking(number, False)

    def put(self, header: Header, payload: bytes = b"") -> bool:
        """Queues a frame and sends what it can. False: the rest needs `flush` once the descriptor is writable."""
        self._queue.append(memoryview(head(header, len(payload))))
        if payload:
            self._queue.append(memoryview(payload))
        return self.flush()

    def flush(self) -> bool:
        """Sends what is queued; False if some of it is left. OSError (EPIPE, ECONNRESET) if nobody reads any more."""
        while self._queue:
            try:
                sent = os.writev(self.number, list(self._queue)[:16])
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                return False  # Killed processes still hold the memory that this side needs.
            while self._queue and sent >= len(self._queue[0]):
                sent -= len(self._queue.popleft())
            if self._queue:
                self._queue[0] = self._queue[0][sent:]
        return True
