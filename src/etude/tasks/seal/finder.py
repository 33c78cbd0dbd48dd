"""Finds which of many byte strings occur in a text, at a cost that hardly depends on their number.

A few strings are searched for one by one. For many, a hash table holds eight bytes from the middle of each string.
Every eight-byte window of the text is looked up in it, and candidates are then compared in full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

FEW = 64
_WIDTH = 8
_BITS = 22
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - _BITS)


class Finder:
    """Searches texts for a fixed set of byte strings."""

    def __init__(self, wanted: Sequence[bytes]) -> None:
        """`wanted` are strings of at least eight bytes each."""
        self._wanted = tuple(wanted)
        self._by_key: defaultdict[int, list[int]] = defaultdict(list)
        if len(self._wanted) > FEW:
            for index, text in enumerate(self._wanted):
                middle = _middle(text)
                self._by_key[int.from_bytes(text[middle : middle + _WIDTH], "little")].append(index)
            self._keys = np.array(sorted(self._by_key), dtype="<u8")
            self._table = np.zeros(1 << _BITS, dtype=bool)
            self._table[(self._keys * _MIX) >> _SHIFT] = True

    def find(self, text: bytes) -> list[int]:
        """Return the indexes of the strings that occur in the text, in ascending order."""
        if not self._by_key:
            return [index for index, wanted in enumerate(self._wanted) if wanted in text]
        found: set[int] = set()
        for offset in range(min(_WIDTH, max(0, len(text) - _WIDTH + 1))):
            windows = np.frombuffer(text, dtype="<u8", count=(len(text) - offset) // _WIDTH, offset=offset)
            likely = np.flatnonzero(self._table[(windows * _MIX) >> _SHIFT])
            rank = np.searchsorted(self._keys, windows[likely]).clip(max=len(self._keys) - 1)
            for place in likely[self._keys[rank] == windows[likely]]:
                at = offset + _WIDTH * int(place)
                for index in self._by_key[int(windows[place])]:
                    start = at - _middle(self._wanted[index])
                    if start >= 0 and text.startswith(self._wanted[index], start):
                        found.add(index)
        return sorted(found)


def _middle(text: bytes) -> int:
    """Return the offset in a string of the eight bytes that are its key in the hash table. They come from the middle,
    because many lines begin alike."""
    return (len(text) - _WIDTH) // 2
