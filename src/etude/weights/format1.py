"""Reads versions of the format etude-weights/1, which this program no longer writes.

A version was one data object, read whole. A tensor was stored in one piece: `same` as the base's; as `delta`, the
zigzag difference from the base's words, or as `planes`, its own bytes, both grouped by significance and compressed with
zstd; or `raw`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from etude.weights.errors import CorruptVersion
from etude.weights.tensor import ITEM_SIZES, Bytes, RawTensor, Tensors, bytes_of, checksum

FORMAT1: Literal["etude-weights/1"] = "etude-weights/1"

Words = NDArray[np.unsignedinteger]


class Entry1(BaseModel):
    """One tensor, and where its bytes are in the version's data object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: Literal["same", "delta", "planes", "raw"]
    offset: int = Field(ge=0)
    length: int = Field(ge=0)
    checksum: str
    """xxh3-128 of the tensor's decoded bytes."""

    @property
    def sums(self) -> tuple[str, ...]:
        return (self.checksum,)


class Manifest1(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["etude-weights/1"] = FORMAT1
    version: int = Field(ge=0)
    kind: Literal["full", "delta"]
    base: int | None
    depth: int = Field(ge=0)
    content: str
    data: str
    data_checksum: str
    bytes_stored: int
    bytes_full: int
    share_changed: float
    tensors: tuple[Entry1, ...]


def unpack(manifest: Manifest1, data: memoryview | None, base: Tensors) -> dict[str, RawTensor]:
    """Return a version's tensors, verified, from its data object and the tensors of its base."""
    if data is None:
        raise CorruptVersion(f"its data object {manifest.data} is gone")
    if checksum(data) != manifest.data_checksum:
        raise CorruptVersion(f"{manifest.data} is not the data that was published")
    tensors: dict[str, RawTensor] = {}
    for entry in manifest.tensors:
        stored = data[entry.offset : entry.offset + entry.length]
        try:
            tensor = _decode(entry, stored, base.get(entry.name))
        except CorruptVersion as error:
            raise CorruptVersion(f"tensor {entry.name}: {error}") from error
        if checksum(tensor.data) != entry.checksum:
            raise CorruptVersion(f"tensor {entry.name} does not have the bytes that were published")
        tensors[entry.name] = tensor
    return tensors


def _decode(entry: Entry1, stored: memoryview, base: RawTensor | None) -> RawTensor:
    codec, dtype, shape = entry.codec, entry.dtype, entry.shape
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


def _apply(difference: Words, base: Words) -> Words:
    one = difference.dtype.type(1)
    return base + ((difference >> one) ^ -(difference & one))


def _join(planes: Bytes, itemsize: int) -> Bytes:
    return np.array(planes.reshape(itemsize, -1).T, order="C").reshape(-1)
