"""Loops over the differences between a tensor and its base.

Elements are read as unsigned words; new minus base, modulo 2^bits, is zigzag-encoded: 0, -1, 1, -2, ... become 0, 1, 2,
3, ... An optimizer step moves most elements by no or one unit in the last place, so nearly all results are small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.weights.codecs.compiled import loop

Words = NDArray[np.unsignedinteger[Any]]

_BLOCK = 2048
"""Elements that a loop works on at a time. Their intermediate results stay in the first cache. A multiple of 4."""
_NONE, _ONE, _TWO, _LOWEST = (np.uint64(x) for x in (0, 1, 2, 0x0101010101010101))


@loop
def count_changed(new, base):  # type: ignore[no-untyped-def]
    """Return how many words differ."""
    found = np.int64(0)
    for begin in range(0, new.size, _BLOCK):
        here, under = new[begin : begin + _BLOCK], base[begin : begin + _BLOCK]
        differing = np.uint32(0)
        for i in range(here.size):
            differing += np.uint32(here[i] != under[i])
        found += np.int64(differing)
    return found


@loop
def differences(new, base, found):  # type: ignore[no-untyped-def]
    """Write the zigzag difference of every word into `found`."""
    top = np.uint64(8 * new.itemsize - 1)
    for i in range(new.size):
        found[i] = new[i] - base[i]
    for i in range(new.size):
        found[i] = found[i] << _ONE ^ (_NONE - (found[i] >> top))


@loop
def add(found, base, new):  # type: ignore[no-untyped-def]
    """Write base + difference into `new`, which may be `base` itself."""
    for i in range(found.size):
        new[i] = base[i] + (found[i] >> _ONE ^ (_NONE - (found[i] & _ONE)))


@loop
def pack(new, base, each, packed, escaped):  # type: ignore[no-untyped-def]
    """Write `each` (4 or 2) differences into a byte of `packed`, of 2 or 4 bits. The largest value of so many bits says
    that the difference is at least as large, and the excess is appended to `escaped`. Returns the number of these."""
    top = np.uint64(8 * new.itemsize - 1)
    most = np.uint64(3 if each == 4 else 15)
    zigzag = np.empty(_BLOCK, new.dtype)
    small = np.zeros(_BLOCK, np.uint8)
    fours, twos, eights = small.view(np.uint32), small.view(np.uint16), small.view(np.uint64)
    number = _NONE
    for begin in range(0, new.size, _BLOCK):
        size = min(_BLOCK, new.size - begin)
        here, under, to = new[begin : begin + size], base[begin : begin + size], packed[begin // each :]
        for i in range(size):
            zigzag[i] = here[i] - under[i]
        for i in range(size):
            zigzag[i] = zigzag[i] << _ONE ^ (_NONE - (zigzag[i] >> top))
        for i in range(size):
            small[i] = np.uint8(min(np.uint64(zigzag[i]), most))
        small[size:] = 0
        if each == 4:
            for i in range((size + 3) // 4):
                four = fours[i]
                to[i] = np.uint8(four | four >> np.uint32(6) | four >> np.uint32(12) | four >> np.uint32(18))
        else:
            for i in range((size + 1) // 2):
                to[i] = np.uint8(twos[i] | twos[i] >> np.uint16(4))
        for k in range((size + 7) // 8):
            ones = eights[k] & (eights[k] >> _ONE)
            if (ones if each == 4 else ones & (ones >> _TWO)) & _LOWEST:  # a byte of the eight is `most`
                for i in range(8 * k, 8 * k + 8):
                    escaped[number] = np.uint64(zigzag[i]) - most
                    number += np.uint64(small[i] == most)
    return np.int64(number)


@loop
def unpack(packed, escaped, each, base, new):  # type: ignore[no-untyped-def]
    """Write base + difference into `new`, which may be `base` itself. The last of `escaped` is no number, but is there
    to be read. Returns how many of them were used, -1 if there are too few."""
    most = np.uint64(3 if each == 4 else 15)
    zigzag = np.empty(_BLOCK, new.dtype)
    small = np.zeros(_BLOCK, np.uint8)
    fours, twos, eights = small.view(np.uint32), small.view(np.uint16), small.view(np.uint64)
    used, given = _NONE, np.uint64(escaped.size - 1)
    for begin in range(0, new.size, _BLOCK):
        size = min(_BLOCK, new.size - begin)
        to, under, given_here = new[begin : begin + size], base[begin : begin + size], packed[begin // each :]
        small[size:] = 0
        if each == 4:
            for i in range((size + 3) // 4):
                four = np.uint32(given_here[i])
                four = four | four << np.uint32(6) | four << np.uint32(12) | four << np.uint32(18)
                fours[i] = four & np.uint32(0x03030303)
        else:
            for i in range((size + 1) // 2):
                two = np.uint16(given_here[i])
                twos[i] = (two | two << np.uint16(4)) & np.uint16(0x0F0F)
        for i in range(size):
            zigzag[i] = small[i]
        for k in range((size + 7) // 8):
            ones = eights[k] & (eights[k] >> _ONE)
            if (ones if each == 4 else ones & (ones >> _TWO)) & _LOWEST:  # a byte of the eight is `most`
                if used + np.uint64(8) > given:
                    escapes = 0
                    for i in range(8 * k, 8 * k + 8):
                        escapes += small[i] == most
                    if used + np.uint64(escapes) > given:
                        return -1
                for i in range(8 * k, 8 * k + 8):
                    escaping = np.uint64(small[i] == most)
                    zigzag[i] += np.uint64(escaped[used]) & (_NONE - escaping)
                    used += escaping
        for i in range(size):
            to[i] = under[i] + (zigzag[i] >> _ONE ^ (_NONE - (zigzag[i] & _ONE)))
    return np.int64(used)


@loop
def find_changed(new, base, gaps, values):  # type: ignore[no-untyped-def]
    """Write for every word that differs the number of equal ones before it, and its difference - 1. Returns how many
    differ."""
    top = np.uint64(8 * new.itemsize - 1)
    one = np.empty(1, new.dtype)
    each = 8 // new.itemsize
    eights = new.size // each
    here, under = new[: eights * each].view(np.uint64), base[: eights * each].view(np.uint64)
    number, last = _NONE, _NONE - _ONE
    for k in range(eights + 1):
        if k < eights and here[k] == under[k]:  # so many words at once
            continue
        for i in range(k * each, min(k * each + each, new.size)):
            place = np.uint64(i)
            if new[place] != base[place]:
                one[0] = new[place] - base[place]
                gaps[number] = place - last - _ONE
                values[number] = (one[0] << _ONE ^ (_NONE - (one[0] >> top))) - _ONE
                number += _ONE
                last = place
    return np.int64(number)


@loop
def change(gaps, values, new):  # type: ignore[no-untyped-def]
    """Undo `find_changed`: `new` holds the base. Returns whether all places were within it."""
    place, size = _NONE - _ONE, np.uint64(new.size)
    for k in range(gaps.size):
        place += np.uint64(gaps[k]) + _ONE
        if place >= size:
            return False
        zigzag = np.uint64(values[k]) + _ONE
        new[place] = new[place] + (zigzag >> _ONE ^ (_NONE - (zigzag & _ONE)))
    return True
