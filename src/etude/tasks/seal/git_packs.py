"""Reads git's pack files: every object, reachable or not, with deltas resolved. Needs neither git nor an index file."""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Iterator

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_BY_OFFSET, _BY_NAME = 6, 7
_KEPT_BYTES = 64 << 20
LARGEST = 128 << 20
"""Maximum size of an object in bytes; larger ones are not read. `nested_archives` also applies it to other files."""


class PackError(Exception):
    """The data is not a pack, or is damaged. Objects before the damage have already been yielded."""


def pack_objects(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name (such as "blob at 12") and the contents of each object, except trees."""
    if data[:4] != b"PACK" or len(data) < 32:
        raise PackError("not a pack")
    count = int.from_bytes(data[8:12], "big")
    reader = _Reader(data)
    at = 12
    for _ in range(count):
        kind, content, after = reader.read(at)
        if kind != "tree":
            yield f"{kind} at {at}", content
        at = after


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._kept: OrderedDict[int, tuple[str, bytes]] = OrderedDict()
        self._size = 0
        self._places: dict[bytes, int] = {}

    def read(self, at: int) -> tuple[str, bytes, int]:
        """Return the kind and contents of the object at offset `at`, and the offset of the next object."""
        number, size, body = self._header(at)
        chain = [at]
        if number in _KINDS:
            content, after = self._inflate(body, size)
            return _KINDS[number], self._keep(at, _KINDS[number], content), after
        base, body = self._base(number, at, body)
        delta, after = self._inflate(body, size)
        deltas = [delta]
        # Follow the bases down to an object that is whole or cached, then apply the deltas upwards. A loop, because
        # delta chains may be longer than Python's recursion limit.
        while base is not None and base not in self._kept:
            number, size, body = self._header(base)
            if number in _KINDS:
                self._keep(base, _KINDS[number], self._inflate(body, size)[0])
                break
            chain.append(base)
            base, body = self._base(number, base, body)
            deltas.append(self._inflate(body, size)[0])
        # The base of a thin pack's delta lies outside the pack; what the delta itself adds can still be read.
        kind, content = self._kept[base] if base is not None else ("delta", b"")
        for place, delta in zip(reversed(chain), reversed(deltas), strict=True):
            content = self._keep(place, kind, _apply(content, delta, loose=base is None))
        return kind, content, after

    def _header(self, at: int) -> tuple[int, int, int]:
        byte = self._byte(at)
        number, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 128:
            at += 1
            byte = self._byte(at)
            size |= (byte & 127) << shift
            shift += 7
        if size > LARGEST:
            raise PackError(f"an object of {size} bytes")
        return number, size, at + 1

    def _base(self, number: int, at: int, body: int) -> tuple[int | None, int]:
        if number == _BY_NAME:
            return self._places.get(self._data[body : body + 20]), body + 20
        if number != _BY_OFFSET:
            raise PackError(f"an object of kind {number}")
        byte = self._byte(body)
        distance = byte & 127
        while byte & 128:
            body += 1
            byte = self._byte(body)
            distance = (distance + 1) << 7 | byte & 127
        if not 12 <= at - distance < at:
            raise PackError("a delta whose base is not in the pack")
        return at - distance, body + 1

    def _inflate(self, at: int, size: int) -> tuple[bytes, int]:
        stream = zlib.decompressobj()
        try:
            # Inflate at most one byte more than the header says: that byte shows that the header is wrong.
            content = stream.decompress(memoryview(self._data)[at:], size + 1)
            rest = stream.decompress(stream.unconsumed_tail, 1) if not stream.eof else b""
        except zlib.error as error:
            raise PackError(str(error)) from None
        if len(content) != size or rest or not stream.eof:
            raise PackError("an object has another length than its header says")
        return content, len(self._data) - len(stream.unused_data)

    def _keep(self, at: int, kind: str, content: bytes) -> bytes:
        name = hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).digest()
        self._places[name] = at
        if at not in self._kept:
            self._kept[at] = (kind, content)
            self._size += len(content)
        while self._size > _KEPT_BYTES and len(self._kept) > 1:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= len(gone)
        return content

    def _byte(self, at: int) -> int:
        if at >= len(self._data):
            raise PackError("it ends too early")
        return self._data[at]


def _apply(base: bytes, delta: bytes, *, loose: bool) -> bytes:
    """Apply a delta. If the base is not known (`loose`), return only the bytes that the delta itself holds."""
    at = _skip_size(delta, _skip_size(delta, 0))
    found = bytearray()
    while at < len(delta):
        code = delta[at]
        at += 1
        if not code & 128:
            if code == 0:
                raise PackError("a reserved instruction in a delta")
            found += delta[at : at + code]
            at += code
            continue
        numbers = []
        for bits in (range(4), range(4, 7)):
            value = 0
            for shift, bit in enumerate(bits):
                if code >> bit & 1:
                    value |= delta[at] << 8 * shift if at < len(delta) else 0
                    at += 1
            numbers.append(value)
        start, length = numbers[0], numbers[1] or 0x10000
        found += b"" if loose else base[start : start + length]
        if len(found) > LARGEST:
            raise PackError("a delta whose result is too large")
    return bytes(found)


def _skip_size(delta: bytes, at: int) -> int:
    while at < len(delta) and delta[at] & 128:
        at += 1
    return at + 1
