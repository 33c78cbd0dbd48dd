"""Frames on a unix stream socket: two lengths, a JSON header, a binary payload. Both ends use these functions."""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTHS = struct.Struct("!II")
Header = dict[str, Any]
MAX_FRAME = 1 << 30


class BrokenFrame(Exception):
    """The peer sent lengths that no frame has; the connection is of no more use."""


def pack(header: Header, payload: bytes = b"") -> bytes:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(encoded), len(payload)) + encoded + payload


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
