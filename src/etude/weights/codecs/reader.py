"""Reads numbers and arrays, one after another, from bytes that may be damaged."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.weights.errors import CorruptVersion


class Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def length(self) -> int:
        """Return the next number that is stored as LEB128, of at most 35 bits."""
        found = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
        raise CorruptVersion("a length has no end")

    def array(self, dtype: str, number: int) -> NDArray[Any]:
        """Return the next `number` elements, copied: loops are compiled for arrays that are aligned and writable."""
        kind = np.dtype(dtype)
        return np.frombuffer(self._take(number * kind.itemsize), kind).copy()

    def end(self) -> None:
        if self._at != len(self._data):
            raise CorruptVersion(f"{len(self._data) - self._at} bytes are left after the end")

    def _take(self, size: int) -> memoryview:
        if self._at + size > len(self._data):
            raise CorruptVersion(f"{len(self._data)} bytes stored where more are needed")
        found = self._data[self._at : self._at + size]
        self._at += size
        return found
