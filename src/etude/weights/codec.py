"""The codecs with which a tensor can be stored, all lossless for every bit pattern. `encode` picks the shortest result,
but never tries `planes` if the delta has less than half of the tensor's size.

- `same`: nothing is stored; the base version's tensor has the same bytes.
- `delta`: the difference from the base version, compressed. Elements are read as unsigned words; new minus base modulo
  2^bits is zigzag-encoded (small changes of either sign become small words); bytes of equal significance are grouped;
  then zstd. A small optimizer step moves a bf16 by one or two units in the last place, so nearly every high byte is 0.
  Stored size is 7-13 % less than with the XOR of the words (docs/weights.md).
- `planes`: the tensor's own bytes, grouped by significance, then zstd. Exponents repeat, so bf16 weights shrink by a
  third or so.
- `raw`: the bytes as they are.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

from etude.weights.errors import CorruptVersion
from etude.weights.tensor import ITEM_SIZES, Bytes, RawTensor, bytes_of

Codec = Literal["same", "delta", "planes", "raw"]

LEVEL = 1
"""zstd compression level. Higher levels save about a tenth of a delta's size and take eight times as long."""

Words = NDArray[np.unsignedinteger]


def encode(new: RawTensor, base: RawTensor | None) -> tuple[Codec, bytes]:
    """Return the codec chosen for `new` and the bytes to store."""
    if base is not None and new.equals(base):
        return "same", b""
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    size = new.itemsize
    best: tuple[Codec, bytes] = ("raw", new.data.tobytes())
    if base is not None and base.like(new):
        difference = _difference(_words(new.data, size), _words(base.data, size))
        packed = compressor.compress(_split(difference.view(np.uint8), size))
        if 2 * len(packed) < new.data.size:
            return "delta", packed
        if len(packed) < len(best[1]):
            best = ("delta", packed)
    packed = compressor.compress(_split(new.data, size))
    return ("planes", packed) if len(packed) < len(best[1]) else best


def changed(new: RawTensor, base: RawTensor | None) -> int:
    """Return how many elements differ from the base; all if it has another dtype or shape, or there is none."""
    elements = new.data.size // new.itemsize
    if base is None or not base.like(new):
        return elements
    differs = _words(new.data, new.itemsize) != _words(base.data, new.itemsize)
    return int(np.count_nonzero(differs if differs.size == elements else differs.reshape(elements, -1).any(axis=1)))


def decode(
    codec: Codec, stored: bytes | memoryview, dtype: str, shape: tuple[int, ...], base: RawTensor | None
) -> RawTensor:
    """Decode a stored tensor into new memory; with the codec "same", return `base` itself. The caller must verify the
    result's checksum."""
    size = bytes_of(dtype, shape)
    if codec in ("same", "delta"):
        if base is None or base.dtype != dtype or base.shape != shape:
            raise CorruptVersion(f"codec {codec} needs a base of {dtype} {list(shape)}, which is not there")
        if codec == "same":
            return base
    if codec == "raw":
        if len(stored) != size:
            raise CorruptVersion(f"{len(stored)} bytes stored where {dtype} {list(shape)} needs {size}")
        return RawTensor(dtype, shape, np.frombuffer(stored, np.uint8).copy())
    try:
        planes = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CorruptVersion(f"zstd: {error}") from error
    if len(planes) != size:
        raise CorruptVersion(f"{len(planes)} bytes unpacked where {dtype} {list(shape)} needs {size}")
    itemsize = ITEM_SIZES[dtype]
    data = _join(np.frombuffer(planes, np.uint8), itemsize)
    if codec == "delta" and base is not None:
        data = _apply(_words(data, itemsize), _words(base.data, itemsize)).view(np.uint8)
    return RawTensor(dtype, shape, data)


def _words(data: Bytes, itemsize: int) -> Words:
    return data.view(f"<u{min(itemsize, 8)}")


def _difference(new: Words, base: Words) -> Words:
    signed = (new - base).view(new.dtype.str.replace("u", "i"))
    bits = new.dtype.itemsize * 8
    return ((signed << 1) ^ (signed >> (bits - 1))).view(new.dtype)


def _apply(difference: Words, base: Words) -> Words:
    one = difference.dtype.type(1)
    return base + ((difference >> one) ^ -(difference & one))


def _split(data: Bytes, itemsize: int) -> memoryview:
    return np.ascontiguousarray(data.reshape(-1, itemsize).T).reshape(-1).data


def _join(planes: Bytes, itemsize: int) -> Bytes:
    return np.array(planes.reshape(itemsize, -1).T, order="C").reshape(-1)
