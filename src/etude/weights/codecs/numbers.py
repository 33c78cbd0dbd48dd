"""Stores unsigned numbers of up to 32 bits: a token each, which the entropy coder stores, and the low bits as they are.

A number below 128 is its own token. A larger one of b bits (8 to 32) has the token 128 + 4 (b - 8) + its second and
third highest bit, and b - 3 low bits. Stored are the block of tokens, then the number of words as LEB128, and the
words, u32: all low bits in the order of the numbers, from the lowest bit of the first word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.weights.codecs import entropy
from etude.weights.codecs.compiled import loop
from etude.weights.codecs.reader import Reader
from etude.weights.errors import CorruptVersion

Numbers = NDArray[np.unsignedinteger[Any]]

OWN = 128
"""Numbers below this are their own tokens."""
_BLOCK = 2048
_HALF, _FULL = np.uint64(32), np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)


def write(values: Numbers) -> bytes:
    tokens, words = split(values)
    return b"".join([entropy.write(tokens), entropy.length(words.size), words.astype("<u4", copy=False).data])


def read(reader: Reader, most: int, dtype: str) -> Numbers:
    """Read at most `most` numbers of this unsigned type."""
    tokens = entropy.read(reader, most)
    words = reader.array("<u4", reader.length())
    values = np.empty(tokens.size, dtype)
    if tokens.size and int(tokens.max()) >= OWN + 4 * (8 * values.itemsize - 7):
        raise CorruptVersion(f"a number is too large for {dtype}")
    if not _join(tokens, words, values):
        raise CorruptVersion("low bits of numbers are missing")
    return values


def split(values: Numbers) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return the tokens, and the words with the low bits."""
    tokens, words = np.empty(values.size, np.uint8), np.empty(values.size + 1, np.uint32)
    return tokens, words[: _split(values, tokens, words)]


@loop
def _split(values, tokens, words):  # type: ignore[no-untyped-def]
    held, bits, place = np.uint64(0), np.uint64(0), np.uint64(0)
    real = np.empty(_BLOCK, np.float64)
    exponents = real.view(np.int64)
    for begin in range(0, values.size, _BLOCK):
        here, to = values[begin : begin + _BLOCK], tokens[begin : begin + _BLOCK]
        larger = 0
        for i in range(here.size):
            to[i] = np.uint8(here[i])
        for i in range(here.size):
            larger |= here[i] >> np.uint64(7)
        if not larger:
            continue
        for i in range(here.size):
            real[i] = here[i]
        for i in range(here.size):
            value = np.uint64(here[i])
            if value < np.uint64(OWN):
                continue
            low = np.uint64((exponents[i] >> 52) - 1025)  # of a number of b bits the exponent is b - 1 + 1023
            to[i] = np.uint8(OWN + 4 * (np.int64(low) - 5) + np.int64((value >> low) & np.uint64(3)))
            held |= (value & ((_ONE << low) - _ONE)) << bits
            bits += low
            if bits >= _HALF:
                words[place] = np.uint32(held & _FULL)
                place += _ONE
                held >>= _HALF
                bits -= _HALF
    if bits:
        words[place] = np.uint32(held & _FULL)
        place += _ONE
    return np.int64(place)


@loop
def _join(tokens, words, values):  # type: ignore[no-untyped-def]
    held, bits, place, size = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(words.size)
    for begin in range(0, tokens.size, _BLOCK):
        here, to = tokens[begin : begin + _BLOCK], values[begin : begin + _BLOCK]
        larger = np.uint8(0)
        for i in range(here.size):
            to[i] = here[i]
        for i in range(here.size):
            larger |= here[i]
        if larger < np.uint8(OWN):
            continue
        for i in range(here.size):
            if here[i] < np.uint8(OWN):
                continue
            token = np.uint64(here[i]) - np.uint64(OWN)
            low = (token >> np.uint64(2)) + np.uint64(5)
            if bits < low:
                if place == size:
                    return False
                held |= np.uint64(words[place]) << bits
                place += _ONE
                bits += _HALF
            to[i] = (np.uint64(4) | (token & np.uint64(3))) << low | (held & ((_ONE << low) - _ONE))
            held >>= low
            bits -= low
    return place == size
