"""Shards: the signatures (Bloom filters, see `grams.py`) of up to about a thousand files, transposed into a bit matrix.

All signatures of a shard have the same length. Row i of the matrix consists of bit i of every file's signature. The
files that may contain a string are found by a bitwise AND of the rows that the hashes of its grams (4-byte substrings)
select. So a query reads only a few short rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from etude.harness.search.grams import Bits
from etude.harness.search.query import All, Literal, Need

MOST_FILES = 1024
MOST_CELLS = 1 << 24
"""Maximum number of bits in a shard's matrix, which limits the memory needed to build it."""

Ids = NDArray[np.int32]
Packed = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The signatures of a group of files as a bit matrix with one column per file."""

    rows: Packed
    """Row i consists of bit i of every file's signature; one byte has the bits of eight files."""
    files: Ids
    """Ids of the shard's files. The i-th file's signature is column i of the bit matrix."""

    def may_hold(self, need: Need) -> Ids:
        """Return the ids of the shard's files that may meet `need`, the condition that a search pattern sets on files
        (see query.py)."""
        hits = np.unpackbits(self._hits(need), count=len(self.files))
        return self.files[hits.view(np.bool_)]

    def _hits(self, need: Need) -> Packed:
        if isinstance(need, Literal):
            wanted = need.hashes & np.uint32(len(self.rows) - 1)
            hits: Packed = np.bitwise_and.reduce(self.rows[wanted], axis=0)
            return hits
        if isinstance(need, All):
            everything = np.full(self.rows.shape[1], 255, np.uint8)
            return reduce(np.bitwise_and, (self._hits(part) for part in need.parts), everything)
        return reduce(np.bitwise_or, (self._hits(part) for part in need.parts))

    def columns(self) -> NDArray[np.bool_]:
        """Return the unpacked signatures, one row per file."""
        return np.unpackbits(self.rows, axis=1, count=len(self.files)).T.view(np.bool_)

    def without(self, dropped: NDArray[np.bool_]) -> Iterator[tuple[int, Bits]]:
        """Yield id and signature of each file that is not to be dropped. `dropped` is indexed by file id."""
        columns = np.ascontiguousarray(self.columns())
        for file, bits in zip(self.files.tolist(), columns, strict=True):
            if not dropped[file]:
                yield file, bits


def holds(bits: Bits, need: Need) -> bool:
    """Return whether a file with this signature may meet `need`, the condition that a search pattern sets on files (see
    query.py)."""
    if isinstance(need, Literal):
        return bool(bits[need.hashes & np.uint32(len(bits) - 1)].all())
    if isinstance(need, All):
        return all(holds(bits, part) for part in need.parts)
    return any(holds(bits, part) for part in need.parts)


def shards_of(signatures: Iterable[tuple[int, Bits]]) -> Iterator[Shard]:
    """Group files, given as id and signature, into shards. All signatures of a shard have the same length. At most one
    incomplete shard per length is in memory."""
    waiting: dict[int, list[tuple[int, Packed]]] = {}
    for file, bits in signatures:
        group = waiting.setdefault(len(bits), [])
        group.append((file, np.packbits(bits)))
        if len(group) >= most_files(len(bits)):
            yield _turned(waiting.pop(len(bits)))
    for group in waiting.values():
        yield _turned(group)


def most_files(length: int) -> int:
    """Return the maximum number of files, at least 8, in a shard whose signatures have `length` bits."""
    return max(8, min(MOST_FILES, MOST_CELLS // length))


def _turned(group: list[tuple[int, Packed]]) -> Shard:
    cells = np.unpackbits(np.stack([packed for _, packed in group]), axis=1)
    rows = np.packbits(np.ascontiguousarray(cells.T), axis=1)
    return Shard(rows, np.array([file for file, _ in group], np.int32))
