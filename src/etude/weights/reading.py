"""Reads a version from its stored parts: deltas are applied chunk by chunk, and every chunk is verified."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from etude.weights.codecs import NEED_BASE, decode
from etude.weights.download import Download
from etude.weights.errors import CorruptVersion
from etude.weights.manifest import Chunk, Entry, Manifest, Part, cut
from etude.weights.tensor import RawTensor, bytes_of, checksum

_AT_ONCE = 64 << 20
"""Bytes that are read in one request, but for a chunk that is longer."""


@dataclass
class Reading:
    """Tensors on their way to a version. Those that are not in `own` belong to the caller and are never written to."""

    download: Download
    tensors: dict[str, RawTensor] = field(default_factory=dict)
    sums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Checksums of every tensor's chunks, which were compared with the bytes."""
    own: set[str] = field(default_factory=set)

    def apply(self, manifest: Manifest, only: Collection[str] | None) -> None:
        """Turn the tensors of the manifest's base into its own; with `only`, those of these names."""
        folder = f"v{manifest.version:06d}"
        wanted = [entry for part in manifest.parts for entry in part.tensors if only is None or entry.name in only]
        for name in self.tensors.keys() - {entry.name for entry in wanted}:
            del self.tensors[name]
            self.own.discard(name)
        for part in manifest.parts:
            path = f"{folder}/{part.data}"
            if (size := self.download.objects.size(path)) is None:
                raise CorruptVersion(f"its data object {part.data} is gone")
            if size != part.bytes_stored:
                raise CorruptVersion(f"{part.data} has {size} bytes where {part.bytes_stored} were published")
            stored = self._stored(path, part, {entry.name for entry in wanted})
            for entry in part.tensors:
                if only is None or entry.name in only:
                    try:
                        self._decode(entry, stored)
                    except CorruptVersion as error:
                        raise CorruptVersion(f"tensor {entry.name}: {error}") from error

    def _decode(self, entry: Entry, stored: Iterator[memoryview]) -> None:
        known = self.sums.get(entry.name, ())
        base = self.tensors.get(entry.name)
        if base is not None and (base.dtype != entry.dtype or base.shape != entry.shape):
            base = None
        if base is None and any(chunk.codec in NEED_BASE for chunk in entry.chunks):
            raise CorruptVersion(f"it needs a base of {entry.dtype} {list(entry.shape)}, which is not there")
        if base is None or (entry.name not in self.own and any(chunk.codec != "same" for chunk in entry.chunks)):
            found = RawTensor(entry.dtype, entry.shape, np.empty(bytes_of(entry.dtype, entry.shape), np.uint8))
        else:
            found = base
        pieces = zip(entry.chunks, cut(found.data), cut(base.data) if base is not None else _nothing(), strict=False)
        for place, (chunk, new, old) in enumerate(pieces):
            where = f"chunk {place}: "
            if chunk.codec == "same":
                if known[place] != chunk.decoded:
                    raise CorruptVersion(f"{where}it is not that of the base")
                if old is not None and found is not base:
                    new[:] = old
                continue
            decode(chunk.codec, next(stored), old, new, found.itemsize)
            if checksum(new) != chunk.decoded:
                raise CorruptVersion(f"{where}it does not have the bytes that were published")
        if found is not base:
            self.own.add(entry.name)
        self.tensors[entry.name], self.sums[entry.name] = found, entry.sums

    def _stored(self, path: str, part: Part, names: Collection[str]) -> Iterator[memoryview]:
        """Yield the stored bytes of these tensors' chunks that have any, verified, many fetched at a time."""
        for begin, chunks in _runs(part, names):
            yield from self.download.fetch(path, begin, chunks)


def _runs(part: Part, names: Collection[str]) -> Iterator[tuple[int, list[Chunk]]]:
    """Yield where chunks that follow one another begin, and the chunks."""
    begin, size, run, at = 0, 0, list[Chunk](), 0
    for entry in part.tensors:
        for chunk in entry.chunks:
            if chunk.length and entry.name in names:
                if run and (begin + size != at or size + chunk.length > _AT_ONCE):
                    yield begin, run
                    run = []
                begin, size = (begin, size) if run else (at, 0)
                run.append(chunk)
                size += chunk.length
            at += chunk.length
    if run:
        yield begin, run


def _nothing() -> Iterator[None]:
    while True:
        yield None
