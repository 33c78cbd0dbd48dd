"""Signatures of texts: a bitmap of the hashes of a text's grams, its 4-byte substrings.

A signature never misses a gram that the text contains. It claims a gram that is not there with a chance of about one in
eight. Letters are folded to lower case (ASCII only), so that one signature serves case-sensitive and case-insensitive
searches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GRAM = 4
LEAST_BITS, MOST_BITS = 1 << 8, 1 << 20
FULLEST = 0.25
"""A signature is halved while at most this fraction of its bits would be set, which leaves 4 to 8 bits per gram."""

_FOLDED = bytes(range(256)).lower()

Bits = NDArray[np.bool_]
Hashes = NDArray[np.uint32]


def fold(text: bytes) -> bytes:
    return text.translate(_FOLDED)


def hashes(text: bytes) -> Hashes:
    """Hashes of all grams of the text, in no particular order."""
    folded = fold(text)
    count = max(0, len(folded) - GRAM + 1)
    found = np.empty(count, np.uint32)
    at = 0
    # The 32-bit words at all four alignments together are all grams.
    for start in range(min(GRAM, count)):
        words = np.frombuffer(folded, "<u4", (len(folded) - start) // GRAM, start)
        found[at : at + len(words)] = words
        at += len(words)
    # The low bits of a product depend only on the low bits of the factor, so mix the high bits in.
    found *= np.uint32(0x9E3779B1)
    found ^= found >> np.uint32(15)
    found *= np.uint32(0x85EBCA77)
    found ^= found >> np.uint32(13)
    return found


def signature(text: bytes) -> Bits:
    """A bitmap whose length is a power of two; the bit `hash % len` is set for each of the text's hashes."""
    size = LEAST_BITS
    while size < min(2 * len(text), MOST_BITS):
        size *= 2
    bits = np.zeros(size, np.bool_)
    bits[(hashes(text) & np.uint32(size - 1)).astype(np.intp)] = True
    while size > LEAST_BITS:
        size //= 2
        halved = bits[:size] | bits[size:]
        if np.count_nonzero(halved) > FULLEST * size:
            break
        bits = halved
    return bits
