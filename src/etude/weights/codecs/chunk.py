"""Encodes and decodes one chunk of a tensor: consecutive elements, with those of the base version if there is one.

Codecs, all lossless for every bit pattern:

- `same`: nothing is stored; the base has the same bytes.
- `gaps`: for each changed element the number of unchanged ones before it, then its difference - 1.
- `packed4`, `packed2`: four or two differences in a byte, then the excess of those that do not fit.
- `numbers`: each difference as a number.
- `planes`: the elements themselves, bytes of equal significance together.
- `raw`: the bytes as they are.

The first five end in the same entropy coder, so that they take little more than the entropy of the differences, and
differ little; which are the smallest is computed from a sample, and of these the fastest is taken. Elements of 8 and 16
bytes are read as words of 4.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from etude.weights.codecs import differences, entropy, numbers, planes
from etude.weights.codecs.differences import Words
from etude.weights.codecs.reader import Reader
from etude.weights.errors import CorruptVersion
from etude.weights.tensor import Bytes

Codec = Literal["same", "gaps", "packed4", "packed2", "numbers", "planes", "raw"]
NEED_BASE = ("same", "gaps", "packed4", "packed2", "numbers")

_SAMPLE, _BLOCK = 1 << 16, 1 << 11
_SAME_SIZE = 1.01
_EACH = {"packed4": 4, "packed2": 2}


def encode(new: Bytes, base: Bytes | None, itemsize: int) -> tuple[Codec, bytes, int]:
    """Return the codec chosen for a chunk, the bytes to store, and how many elements differ from the base, which has
    the same size; all without a base."""
    codec, differing = choose(new, base, itemsize), new.size // itemsize
    if base is not None and codec == "gaps" and itemsize <= 4:
        gaps, values = _gaps(words_of(new, itemsize), words_of(base, itemsize))
        stored, differing = numbers.write(gaps) + numbers.write(values), gaps.size
    else:
        if base is not None:
            differing = changed(new, base, itemsize)
        stored = encode_as(codec, new, base, itemsize) if differing else b""
    if base is not None and not differing:
        return "same", b"", 0
    return (codec, stored, differing) if len(stored) < new.size else ("raw", new.tobytes(), differing)


def changed(new: Bytes, base: Bytes, itemsize: int) -> int:
    """Return how many elements differ."""
    if itemsize > 4:
        differs = (new != base).reshape(-1, itemsize)
        return int(np.count_nonzero(differs.any(axis=1)))
    return int(differences.count_changed(words_of(new, itemsize), words_of(base, itemsize)))


def encode_as(codec: Codec, new: Bytes, base: Bytes | None, itemsize: int) -> bytes:
    if codec == "raw":
        return new.tobytes()
    words = words_of(new, itemsize)
    if codec == "planes":
        return planes.write(words)
    assert base is not None, codec
    under = words_of(base, itemsize)
    if codec == "gaps":
        gaps, values = _gaps(words, under)
        return numbers.write(gaps) + numbers.write(values)
    if codec in _EACH:
        packed, escaped = _packed(words, under, _EACH[codec])
        return entropy.write(packed) + numbers.write(escaped)
    return numbers.write(_differences(words, under))


def decode(codec: str, stored: memoryview, base: Bytes | None, new: Bytes, itemsize: int) -> None:
    """Decode a chunk into `new`, which may be `base` itself. Damaged bytes raise CorruptVersion or give wrong elements:
    the caller verifies checksums before and after."""
    if codec in NEED_BASE and base is None:
        raise CorruptVersion(f"codec {codec} needs a base, which is not there")
    words, reader = words_of(new, itemsize), Reader(stored)
    if codec == "raw":
        new[:] = reader.array("u1", new.size)
    elif codec == "planes":
        planes.read(reader, words)
    elif base is not None:
        _decode_difference(codec, reader, words_of(base, itemsize), words)
    reader.end()
    if codec != "raw" and new.ctypes.data != words.ctypes.data:
        new[:] = words.view(np.uint8)


def _decode_difference(codec: str, reader: Reader, base: Words, words: Words) -> None:
    kind = words.dtype.str
    if codec == "gaps":
        gaps, values = numbers.read(reader, words.size, "<u4"), numbers.read(reader, words.size, kind)
        if gaps.size != values.size:
            raise CorruptVersion("gaps and values differ in number")
        words[:] = base
        if not differences.change(gaps, values, words):
            raise CorruptVersion("a changed element lies outside of its chunk")
    elif codec in _EACH:
        each = _EACH[codec]
        packed = entropy.read(reader, -(-words.size // each))
        if packed.size != -(-words.size // each):
            raise CorruptVersion(f"{packed.size} packed bytes for {words.size} elements")
        escaped = numbers.read(reader, words.size, kind)
        if differences.unpack(packed, np.append(escaped, escaped.dtype.type(0)), each, base, words) != escaped.size:
            raise CorruptVersion("the number of large differences is wrong")
    elif codec == "numbers":
        found = numbers.read(reader, words.size, kind)
        if found.size != words.size:
            raise CorruptVersion(f"{found.size} differences for {words.size} elements")
        differences.add(found, base, words)
    elif codec == "same":
        words[:] = base
    else:
        raise CorruptVersion(f"unknown codec {codec!r}")


def words_of(data: Bytes, itemsize: int) -> Words:
    """Return the bytes as words, in the same memory if it is aligned. They are marked as writable, since loops are
    compiled once more for arrays that are not."""
    words = data.view(f"<u{min(itemsize, 4)}")
    if not words.flags.aligned:
        return words.copy()
    return words if words.flags.writeable else np.asarray(_Writable(words))


class _Writable:
    def __init__(self, words: Words) -> None:
        interface = words.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}
        self.words = words


def choose(new: Bytes, base: Bytes | None, itemsize: int) -> Codec:
    """Return the fastest codec among those of which a sample says that they need at most 1 % more bytes than the
    smallest does."""
    words = words_of(new, itemsize)
    places = _sampled(words.size)
    scale = words.size / max(places.size, 1)
    sample = words[places]
    sizes: dict[Codec, float] = {"raw": new.size, "planes": sum(_coded(p, scale) for p in planes.planes_of(sample))}
    # Nanoseconds to encode and decode an element of bf16, as measured.
    slowness: dict[Codec, float] = {"raw": 0, "planes": 8}
    if base is not None:
        under = words_of(base, itemsize)[places]
        gaps, values = _gaps(sample, under)
        sizes["gaps"] = _numbers(gaps, scale) + _numbers(values, scale)
        slowness["gaps"] = 0.5 + 45 * gaps.size / max(sample.size, 1)
        for codec, most, each_escaped in (("packed4", 3.0, 17), ("packed2", 3.9, 15)):
            packed, escaped = _packed(sample, under, _EACH[codec])
            sizes[cast(Codec, codec)] = _coded(packed, scale) + _numbers(escaped, scale)
            slowness[cast(Codec, codec)] = most + each_escaped * escaped.size / max(sample.size, 1)
        sizes["numbers"], slowness["numbers"] = _numbers(_differences(sample, under), scale), 7.8
    enough = min(sizes.values()) * _SAME_SIZE
    return min((codec for codec in sizes if sizes[codec] <= enough), key=lambda codec: slowness[codec])


def _sampled(size: int) -> NDArray[np.int64]:
    """Return the places of a sample: all, or blocks at equal distances."""
    if size <= _SAMPLE:
        return np.arange(size)
    begins = np.linspace(0, size - _BLOCK, _SAMPLE // _BLOCK).astype(np.int64)
    return (begins[:, None] + np.arange(_BLOCK)).reshape(-1)


def _coded(symbols: Bytes, scale: float) -> float:
    """Return about how many bytes the coded block of `scale` times as many symbols takes."""
    counts = entropy.histogram(symbols)
    return min(entropy.coded_size(counts * scale), 5 + scale * symbols.size)


def _numbers(values: Words, scale: float) -> float:
    tokens, words = numbers.split(values)
    return 4 + _coded(tokens, scale) + scale * words.nbytes


def _gaps(words: Words, base: Words) -> tuple[NDArray[np.uint32], Words]:
    gaps, values = np.empty(words.size, np.uint32), np.empty(words.size, words.dtype)  # most of it is never touched
    number = differences.find_changed(words, base, gaps, values)
    return gaps[:number], values[:number]


def _packed(words: Words, base: Words, each: int) -> tuple[Bytes, Words]:
    packed, escaped = np.empty(-(-words.size // each), np.uint8), np.empty(words.size + 1, words.dtype)
    return packed, escaped[: differences.pack(words, base, each, packed, escaped)]


def _differences(words: Words, base: Words) -> NDArray[Any]:
    found = np.empty(words.size, words.dtype)
    differences.differences(words, base, found)
    return found
