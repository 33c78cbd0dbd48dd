"""What a text holds, in short: a bitmap of the hashes of its grams, the pieces of four bytes.

A signature never denies a gram that the text holds; it claims others by chance, each about once in eight. Letters are
folded (ASCII only), so that one signature serves searches with and without regard to case.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GRAM = 4
LEAST_BITS, MOST_BITS = 1 << 8, 1 << 20
FULLEST = 0.25
"""A signature is halved as long as at most this share of its bits is set: it then has 4 to 8 bits for each gram."""

_FOLDED = bytes(range(256)).lower()

Bits = NDArray[np.bool_]
Hashes = NDArray[np.uint32]


def fold(text: bytes) -> bytes:
    return text.translate(_FOLDED)


def hashes(text: bytes) -> Hashes:
    """One for each gram of the text, in no order."""
    folded = fold(text)
    count = max(0, len(folded) - GRAM + 1)
    found = np.empty(count, np.uint32)
    at = 0
    # Whole words at each of the four alignments are together all grams.
    for start in range(min(GRAM, count)):
        words = np.frombuffer(folded, "<u4", (len(folded) - start) // GRAM, start)
        found[at : at + len(words)] = words
        at += len(words)
    # The low bits of a product know only the low bits of the factor: the high ones are brought down.
    found *= np.uint32(0x9E3779B1)
    found ^= found >> np.uint32(15)
    found *= np.uint32(0x85EBCA77)
    found ^= found >> np.uint32(13)
    return found


def signature(text: bytes) -> Bits:
    """A power of two of bits: the bit `hash % len` is set for each of the text's hashes."""
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
