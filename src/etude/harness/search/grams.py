"""Signatures of texts: Bloom filters of a text's grams, which are its 4-byte substrings.

A lookup in a signature finds every gram of the text, and wrongly finds any other gram with a probability of about one
in five. ASCII letters are converted to lower case, so that one signature serves case-sensitive and case-insensitive
searches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GRAM = 4
LEAST_BITS, MOST_BITS = 1 << 8, 1 << 20
"""Minimum and maximum length in bits of a text's signature (its Bloom filter)."""
FULLEST = 0.25
"""A signature is folded to half its length, to save space, as long as at most this fraction of its bits is then set.
For source code, the final length is 3 to 7 bits per distinct gram."""

_FOLDED = bytes(range(256)).lower()

Bits = NDArray[np.bool_]
Hashes = NDArray[np.uint32]


def fold(text: bytes) -> bytes:
    return text.translate(_FOLDED)


def hashes(text: bytes) -> Hashes:
    """Return the hashes of all grams of the text in lower case, in arbitrary order."""
    folded = fold(text)
    count = max(0, len(folded) - GRAM + 1)
    found = np.empty(count, np.uint32)
    at = 0
    # The 32-bit words that begin at each of the four byte offsets are together all grams.
    for start in range(min(GRAM, count)):
        words = np.frombuffer(folded, "<u4", (len(folded) - start) // GRAM, start)
        found[at : at + len(words)] = words
        at += len(words)
    # The low bits of a product depend only on the low bits of its factors, so the high bits are mixed in.
    found *= np.uint32(0x9E3779B1)
    found ^= found >> np.uint32(15)
    found *= np.uint32(0x85EBCA77)
    found ^= found >> np.uint32(13)
    return found


def signature(text: bytes) -> Bits:
    """Return a bitmap whose length is a power of two. For each gram of the text in lower case, the bit `hash % length`
    is set."""
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
