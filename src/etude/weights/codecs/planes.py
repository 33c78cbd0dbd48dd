"""Stores words without a base: their bytes of equal significance are grouped, and each group is coded by its entropy.

A word longer than a byte is first rotated left by one bit. The exponent of a floating-point number then lies apart from
the sign, in the highest byte (bf16, fp32), where few values are frequent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.weights.codecs import entropy
from etude.weights.codecs.compiled import loop
from etude.weights.codecs.differences import Words
from etude.weights.codecs.reader import Reader
from etude.weights.errors import CorruptVersion

_ONE, _BLOCK = np.uint64(1), 2048


def write(words: Words) -> bytes:
    return b"".join(entropy.write(plane) for plane in planes_of(words))


def read(reader: Reader, words: Words) -> None:
    """Read into `words`."""
    planes = [entropy.read(reader, words.size) for _ in range(words.itemsize)]
    if any(plane.size != words.size for plane in planes):
        raise CorruptVersion(f"a plane does not have {words.size} bytes")
    _join(np.stack(planes), words)


def planes_of(words: Words) -> NDArray[np.uint8]:
    planes = np.empty((words.itemsize, words.size), np.uint8)
    _split(words, planes)
    return planes


@loop
def _split(words, planes):  # type: ignore[no-untyped-def]
    bits = np.uint64(8 * words.itemsize - 1)
    rotated = np.empty(_BLOCK, words.dtype)
    for begin in range(0, words.size, _BLOCK):
        here = words[begin : begin + _BLOCK]
        for i in range(here.size):
            rotated[i] = here[i]
        if words.itemsize > 1:
            for i in range(here.size):
                rotated[i] = here[i] << _ONE | here[i] >> bits
        for plane in range(words.itemsize):
            to, shift = planes[plane, begin : begin + _BLOCK], np.uint64(8 * plane)
            for i in range(here.size):
                to[i] = np.uint8(rotated[i] >> shift)


@loop
def _join(planes, words):  # type: ignore[no-untyped-def]
    bits = np.uint64(8 * words.itemsize - 1)
    rotated = np.empty(_BLOCK, words.dtype)
    for begin in range(0, words.size, _BLOCK):
        to = words[begin : begin + _BLOCK]
        rotated[:] = 0
        for plane in range(words.itemsize):
            here, shift = planes[plane, begin : begin + _BLOCK], np.uint64(8 * plane)
            for i in range(to.size):
                rotated[i] |= np.uint64(here[i]) << shift
        for i in range(to.size):
            to[i] = rotated[i]
        if words.itemsize > 1:
            for i in range(to.size):
                to[i] = rotated[i] >> _ONE | rotated[i] << bits
