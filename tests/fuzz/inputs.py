"""Makes inputs: drawn by Hypothesis from a buffer of random bytes, or mutated from earlier ones.

A buffer that led to new lines is kept and mutated like an input, which changes the drawn input in its structure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

_LONGEST_BUFFER = 8192
_NUMBERS = (0, 1, 127, 128, 255, 256, 512, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 30, 1 << 32, (1 << 63) - 1)
_PIECES = (
    *(
        b"\0",
        b"\n",
        b"\r\n",
        b"\r",
        b" ",
        b"\t",
        b"/",
        b"..",
        b"../",
        b"./",
        b'"',
        b"'",
        b"\\",
        b"$",
        b"${",
        b"}",
        b"[",
    ),
    *(b"]", b"{", b",", b":", b"=", b"-", b"+", b"@@", b"inf", b"nan", b"-1", b"1e999", b"9" * 30, b"null", b"true"),
    *(b"\xff", b"\xc3\xa9", b"\xed\xb2\x80", "\u2028".encode(), b"\x1b[0m", b"A" * 300),
)


class Drawer:
    def __init__(self, strategy: SearchStrategy[bytes]) -> None:
        self._drawn: bytes | None = None

        @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(strategy)
        def take(data: bytes) -> None:
            self._drawn = data

        self._take = take.hypothesis.fuzz_one_input  # type: ignore[attr-defined]

    def draw(self, buffer: bytes) -> bytes | None:
        """Return the input for which this buffer makes all choices. None: the buffer is too short."""
        self._drawn = None
        self._take(buffer)
        return self._drawn


class Inputs:
    def __init__(self, strategy: SearchStrategy[bytes], largest: int, seed: int) -> None:
        self._random, self._largest = random.Random(seed), largest
        self._drawer = Drawer(strategy)
        self._good: list[bytes] = []
        self._good_buffers: list[bytes] = []
        self._buffer: bytes | None = None

    def keep(self, data: bytes) -> None:
        """Remember an input that reached something new, and the buffer from which it was drawn, if any."""
        self._good.append(data)
        if self._buffer is not None:
            self._good_buffers.append(self._buffer)

    def next(self) -> bytes:
        chance = self._random.random()
        self._buffer = None
        if chance < 0.5 or not self._good:
            buffer = self._next_buffer()
            drawn = self._drawer.draw(buffer)
            if drawn is not None and len(drawn) <= self._largest:
                if chance < 0.4:
                    self._buffer = buffer
                    return drawn
                return self._mutated(drawn)
        return self._mutated(self._one_of(self._good) if self._good else b"")

    def _next_buffer(self) -> bytes:
        if self._good_buffers and self._random.random() < 0.5:
            return _mutate(self._random, self._one_of(self._good_buffers), self._good_buffers, _LONGEST_BUFFER)
        return self._random.randbytes(_LONGEST_BUFFER)

    def _mutated(self, data: bytes) -> bytes:
        for _ in range(self._random.choice((1, 1, 2, 3, 6))):
            data = _mutate(self._random, data, self._good, self._largest)
        return data

    def _one_of(self, found: Sequence[bytes]) -> bytes:
        """Half of the time one of the latest, which reached what is new."""
        recent = found[-20:] if self._random.random() < 0.5 else found
        return self._random.choice(recent)


def _mutate(rng: random.Random, data: bytes, others: Sequence[bytes], largest: int) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 4, 8, 32, 512)))
    kind = rng.randrange(9)
    if kind == 0:
        changed = data[:at] + data[end:]
    elif kind == 1:
        changed = data[:at] + rng.choice(_PIECES) + data[at:]
    elif kind == 2:
        changed = data[:at] + rng.choice(_PIECES) + data[end:]
    elif kind == 3:
        changed = data[:at] + rng.randbytes(end - at) + data[end:]
    elif kind == 4:
        number = rng.choice(_NUMBERS)
        written = rng.choice((number.to_bytes(8, "big"), (number & 0xFFFFFFFF).to_bytes(4, "big"), b"%d" % number))
        changed = data[:at] + written + data[at + len(written) :]
    elif kind == 5:
        changed = data[:end] + data[at:]
    elif kind == 6:  # A parser that is not linear shows it on a piece that is repeated very often.
        times = rng.choice((3, 20, 400, largest)) if end > at else 0
        changed = data[:at] + data[at:end] * min(times, max(0, largest - len(data)) // max(1, end - at)) + data[end:]
    elif kind == 7 and others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        changed = data[:at] + other[start : start + rng.choice((8, 64, 512, 4096))] + data[end:]
    else:
        flipped = bytearray(data)
        if flipped:
            flipped[at % len(flipped)] ^= 1 << rng.randrange(8)
        changed = bytes(flipped)
    return changed[:largest]
