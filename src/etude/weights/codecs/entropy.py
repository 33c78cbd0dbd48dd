"""The entropy coder: stores a sequence of bytes at, within a per mille, the entropy of its histogram (order 0).

It is rANS with four interleaved states, probabilities in units of 1/4096, and 16-bit words. A coded block, all numbers
little-endian, lengths as LEB128 (seven bits a byte, the lowest first, the highest bit set in all but the last):

- u8 kind: 0 raw, 1 constant, 2 coded; the number of symbols, a length;
- raw: the symbols. Constant: the one symbol;
- coded: which symbols occur, as u8 number of runs and for each run u8 its first symbol and u8 how many follow; for each
  symbol its frequency - 1, a length (the frequencies add up to 4096); four states, u32; the number of words, a length;
  the words, u16.

Symbol i is decoded with state i mod 4: `slot = x mod 4096` lies in the range of one symbol, whose ranges are laid out
in the order of the symbols; then `x = frequency * (x div 4096) + slot - start`, and if x < 2^15, x = x * 2^16 + the
next word. At the end all states are 2^15 and all words are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.weights.codecs.compiled import loop
from etude.weights.codecs.reader import Reader
from etude.weights.errors import CorruptVersion
from etude.weights.tensor import Bytes

RAW, CONSTANT, CODED = range(3)
SCALE = 4096
_LEAST = 1 << 15
_LEAST_STATE, _SLOT, _FOUR, _UNIT = np.uint64(_LEAST), np.uint64(SCALE - 1), np.uint64(4), np.uint64(SCALE)
_WORD, _PRECISION, _LIMIT, _START = np.uint64(16), np.uint64(12), np.uint64(19), np.uint64(20)
_SYMBOL_BITS, _NONE, _ONE, _TWO, _THREE = (np.uint64(x) for x in (8, 0, 1, 2, 3))

Counts = NDArray[np.int64]
_Tables = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]


def write(symbols: Bytes) -> bytes:
    """Return the coded block of these symbols, at most 5 bytes longer than they are."""
    counts = histogram(symbols)
    used = np.flatnonzero(counts)
    if used.size == 1:
        return bytes([CONSTANT]) + length(symbols.size) + bytes([used[0]])
    if used.size:
        frequencies = scaled(counts)
        if coded_size(counts, frequencies) < symbols.size:
            words = np.empty(symbols.size + 4, np.uint16)
            first, states = _encode(symbols, _encoder(frequencies), words)
            table = _runs(used) + b"".join(map(length, (frequencies[used] - 1).tolist()))
            tail = states.astype("<u4").tobytes() + length(words.size - first)
            stored = words[first:].astype("<u2", copy=False).data
            return b"".join([bytes([CODED]), length(symbols.size), table, tail, stored])
    return bytes([RAW]) + length(symbols.size) + symbols.tobytes()


def read(reader: Reader, most: int) -> Bytes:
    """Read a coded block of at most `most` symbols."""
    (kind,), number = reader.numbers("<B"), reader.length()
    if number > most:
        raise CorruptVersion(f"{number} symbols where there can be {most}")
    if kind == RAW:
        return reader.array("u1", number)
    if kind == CONSTANT:
        return np.full(number, reader.numbers("<B")[0], np.uint8)
    if kind != CODED:
        raise CorruptVersion(f"unknown kind of block: {kind}")
    runs = reader.array("u1", 2 * reader.numbers("<B")[0]).astype(np.int64).reshape(-1, 2)
    symbols = np.array([first + i for first, more in runs.tolist() for i in range(more + 1)], np.int64)
    frequencies = np.array([reader.length() + 1 for _ in range(symbols.size)], np.int64)
    if frequencies.sum() != SCALE or (np.diff(symbols) <= 0).any() or symbols[-1] > 255:
        raise CorruptVersion("a table of frequencies is damaged")
    states = np.array(reader.numbers("<4I"), np.uint64)
    size = reader.length()
    words = reader.array("<u2", size)
    if (states < _LEAST).any() or (states >= 1 << 31).any():
        raise CorruptVersion("a state of the coder is out of range")
    found = np.empty(number, np.uint8)
    if _decode(words, _decoder(symbols, frequencies), states, found) != size or (states != _LEAST).any():
        raise CorruptVersion("coded bytes do not end where their block does")
    return found


def histogram(symbols: Bytes) -> Counts:
    """Return how often each of the 256 bytes occurs."""
    counts: Counts = _count(symbols)
    return counts


def scaled(counts: NDArray[Any]) -> Counts:
    """Return frequencies of sum 4096 in proportion to the counts, at least 1 for each byte that occurs."""
    frequencies: Counts = np.maximum(np.rint(counts * (SCALE / counts.sum())).astype(np.int64), counts > 0)
    while missing := SCALE - int(frequencies.sum()):
        frequencies[np.argmax(frequencies)] += 1 if missing > 0 else -1
    return frequencies


def coded_size(counts: NDArray[Any], frequencies: Counts | None = None) -> float:
    """Return about how many bytes a coded block takes, for a histogram of its symbols."""
    used = np.flatnonzero(counts)
    if used.size < 2:
        return 5
    kept = (scaled(counts) if frequencies is None else frequencies)[used]
    table = 2 * np.count_nonzero(np.diff(used) > 1) + used.size + np.count_nonzero(kept > 128)
    return 26 + table - float(counts[used] @ np.log2(kept / SCALE)) / 8


def length(number: int) -> bytes:
    """Return a length as LEB128."""
    found = bytearray()
    while number > 0x7F:
        found.append(0x80 | number & 0x7F)
        number >>= 7
    return bytes([*found, number])


def _runs(used: NDArray[np.int64]) -> bytes:
    """Return which symbols occur, as runs of neighbours."""
    runs = np.split(used, np.flatnonzero(np.diff(used) > 1) + 1)
    return bytes([len(runs), *(number for run in runs for number in (int(run[0]), run.size - 1))])


def _encoder(frequencies: Counts) -> _Tables:
    """Return tables by symbol: frequency, start of its range, and the multiplier and shift that divide a state by the
    frequency, which is exact for all states below 2^31."""
    starts = np.cumsum(frequencies) - frequencies
    shifts = np.array([31 + int(f - 1).bit_length() if f else 0 for f in frequencies.tolist()], np.uint64)
    factors = [-(-(1 << s) // f) if f else 0 for s, f in zip(shifts.tolist(), frequencies.tolist(), strict=True)]
    return frequencies.astype(np.uint64), starts.astype(np.uint64), np.array(factors, np.uint64), shifts


def _decoder(symbols: Counts, frequencies: Counts) -> NDArray[np.uint32]:
    """Return the table by slot: symbol, frequency - 1 (from bit 8), and slot - start (from bit 20)."""
    starts = np.cumsum(frequencies) - frequencies
    within = np.arange(SCALE) - np.repeat(starts, frequencies)
    entries = symbols | (frequencies - 1) << 8
    return np.asarray(np.repeat(entries, frequencies) | within << 20, np.uint32)


@loop
def _count(symbols):  # type: ignore[no-untyped-def]
    counts = np.zeros((4, 256), np.int64)
    whole = symbols.size & ~3
    for i in range(0, whole, 4):
        counts[0, symbols[i]] += 1
        counts[1, symbols[i + 1]] += 1
        counts[2, symbols[i + 2]] += 1
        counts[3, symbols[i + 3]] += 1
    for i in range(whole, symbols.size):
        counts[0, symbols[i]] += 1
    return counts.sum(axis=0)


@loop
def _encode(symbols, tables, words):  # type: ignore[no-untyped-def]
    """Fill `words` from its end; return the index of the first one, and the states."""
    frequencies, starts, factors, shifts = tables
    states = np.full(4, _LEAST_STATE, np.uint64)
    place, i = np.uint64(words.size), np.uint64(symbols.size)
    while i & _THREE:
        i -= _ONE
        s, x = symbols[i], states[i & _THREE]
        if x >= frequencies[s] << _LIMIT:
            place -= _ONE
            words[place] = np.uint16(x)
            x >>= _WORD
        states[i & _THREE] = x + starts[s] + ((x * factors[s]) >> shifts[s]) * (_UNIT - frequencies[s])
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    while i > 0:
        i -= _FOUR
        a, b, c, d = symbols[i], symbols[i + _ONE], symbols[i + _TWO], symbols[i + _THREE]
        fa, fb, fc, fd = frequencies[a], frequencies[b], frequencies[c], frequencies[d]
        # Every word is written, and those that were not due are written over: no branch has to be predicted.
        words[place - _ONE] = np.uint16(x3)
        due = x3 >= fd << _LIMIT
        place -= np.uint64(due)
        x3 = x3 >> _WORD if due else x3
        words[place - _ONE] = np.uint16(x2)
        due = x2 >= fc << _LIMIT
        place -= np.uint64(due)
        x2 = x2 >> _WORD if due else x2
        words[place - _ONE] = np.uint16(x1)
        due = x1 >= fb << _LIMIT
        place -= np.uint64(due)
        x1 = x1 >> _WORD if due else x1
        words[place - _ONE] = np.uint16(x0)
        due = x0 >= fa << _LIMIT
        place -= np.uint64(due)
        x0 = x0 >> _WORD if due else x0
        x3 += starts[d] + ((x3 * factors[d]) >> shifts[d]) * (_UNIT - fd)
        x2 += starts[c] + ((x2 * factors[c]) >> shifts[c]) * (_UNIT - fc)
        x1 += starts[b] + ((x1 * factors[b]) >> shifts[b]) * (_UNIT - fb)
        x0 += starts[a] + ((x0 * factors[a]) >> shifts[a]) * (_UNIT - fa)
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    return np.int64(place), states


@loop
def _decode(words, table, states, found):  # type: ignore[no-untyped-def]
    """Decode into `found`; return how many words were used, -1 if there are too few."""
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    place, i, number, size = _NONE, _NONE, np.uint64(found.size), np.uint64(words.size)
    while i + _FOUR <= number and place + _FOUR <= size:
        a, b = np.uint64(table[x0 & _SLOT]), np.uint64(table[x1 & _SLOT])
        c, d = np.uint64(table[x2 & _SLOT]), np.uint64(table[x3 & _SLOT])
        found[i], found[i + _ONE], found[i + _TWO] = np.uint8(a), np.uint8(b), np.uint8(c)
        found[i + _THREE] = np.uint8(d)
        x0 = (((a >> _SYMBOL_BITS) & _SLOT) + _ONE) * (x0 >> _PRECISION) + (a >> _START)
        x1 = (((b >> _SYMBOL_BITS) & _SLOT) + _ONE) * (x1 >> _PRECISION) + (b >> _START)
        x2 = (((c >> _SYMBOL_BITS) & _SLOT) + _ONE) * (x2 >> _PRECISION) + (c >> _START)
        x3 = (((d >> _SYMBOL_BITS) & _SLOT) + _ONE) * (x3 >> _PRECISION) + (d >> _START)
        due, longer = x0 < _LEAST_STATE, x0 << _WORD | np.uint64(words[place])
        x0 = longer if due else x0
        place += np.uint64(due)
        due, longer = x1 < _LEAST_STATE, x1 << _WORD | np.uint64(words[place])
        x1 = longer if due else x1
        place += np.uint64(due)
        due, longer = x2 < _LEAST_STATE, x2 << _WORD | np.uint64(words[place])
        x2 = longer if due else x2
        place += np.uint64(due)
        due, longer = x3 < _LEAST_STATE, x3 << _WORD | np.uint64(words[place])
        x3 = longer if due else x3
        place += np.uint64(due)
        i += _FOUR
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    while i < number:
        x = states[i & _THREE]
        entry = np.uint64(table[x & _SLOT])
        found[i] = np.uint8(entry)
        x = (((entry >> _SYMBOL_BITS) & _SLOT) + _ONE) * (x >> _PRECISION) + (entry >> _START)
        if x < _LEAST_STATE:
            if place == size:
                return -1
            x = x << _WORD | np.uint64(words[place])
            place += _ONE
        states[i & _THREE] = x
        i += _ONE
    return np.int64(place)
