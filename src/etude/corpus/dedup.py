"""Finds exact and near duplicates among texts. The first of a set of similar documents is kept; the result depends only
on the texts and their order.

Two documents are near duplicates if their shingles (five consecutive words) have a Jaccard similarity of at least the
threshold. MinHash (rensa) finds candidates, whose similarity is then computed exactly, so that no document is dropped
because of an estimate. A pair right at the threshold is found with a probability of about 0.998 (20 bands of 6 rows).

Memory holds a signature of 480 bytes per document. Texts, and the shingles of candidates, stay on disk.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import rensa
import xxhash
from numpy.typing import NDArray

_WORD = re.compile(r"\w+|[^\w\s]")
_ASCII_WORD = re.compile(_WORD.pattern, re.ASCII)
_SHINGLE = 5
_BANDS, _ROWS = 20, 6
_SLACK = 0.2
_KNOWN_WORDS = 1 << 20
SIGNATURE = _BANDS * _ROWS
"""Numbers in a signature."""
_CHECKED = 8
"""Maximum number of candidates per document that are compared exactly, those with the best MinHash estimates."""


def normalised_digest(text: str) -> str:
    """Digest that ignores whitespace, to find exact duplicates and contamination."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()


def first_copies(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each text, given the texts' digests, a row each, whether no earlier text has the same."""
    kept = np.zeros(len(digests), dtype=bool)
    kept[np.unique(digests, axis=0, return_index=True)[1]] = True
    return kept


def signatures(texts: Sequence[str]) -> NDArray[np.uint32]:
    """Return the MinHash signatures of texts, [texts, SIGNATURE]."""
    if not texts:
        return np.zeros((0, SIGNATURE), dtype=np.uint32)
    shingles = [_shingle_hashes(text) for text in texts]
    offsets = np.zeros(len(shingles) + 1, dtype=np.uint64)
    offsets[1:] = np.cumsum([len(hashes) for hashes in shingles])
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        np.concatenate(shingles), offsets, num_perm=SIGNATURE, seed=1
    )
    return np.asarray(matrix.to_rows(), dtype=np.uint32)


def near_duplicates(
    signed: NDArray[np.uint32],
    similarity: float,
    texts_of: Callable[[NDArray[np.int64]], Iterable[str]],
    folder: Path | None = None,
) -> NDArray[np.bool_]:
    """Return for each text whether it is a near duplicate of an earlier one that is not flagged itself. `signed` are
    the texts' signatures, `texts_of` returns the texts of some indices, and `folder` is where the shingles of
    candidates are kept meanwhile."""
    flags = np.zeros(len(signed), dtype=bool)
    groups = _groups(signed)
    suspects = np.flatnonzero((groups >= 0).any(axis=0))
    shingles = _Shingles(suspects, texts_of(suspects), folder)
    buckets: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(_BANDS)]
    for index in suspects.tolist():
        mine = [(bucket, group) for bucket, group in zip(buckets, groups[:, index].tolist(), strict=True) if group >= 0]
        found = [bucket[group] for bucket, group in mine if group in bucket]
        flags[index] = bool(found) and _is_near(index, found, signed, shingles, similarity)
        if not flags[index]:
            for bucket, group in mine:
                bucket[group].append(index)
    return flags


def _groups(signed: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Number, band by band, the sets of texts whose signatures agree in the band: [bands, texts]; -1 for a text that
    agrees with no other. Most texts are alone in all bands, and cost nothing more."""
    factors = np.array([pow(0x9E3779B97F4A7C15, power + 1, 2**64) for power in range(_ROWS)], dtype=np.uint64)
    groups = np.full((_BANDS, len(signed)), -1, dtype=np.int32)
    for band in range(_BANDS):
        keys = (signed[:, band * _ROWS : (band + 1) * _ROWS] * factors).sum(axis=1, dtype=np.uint64)
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        groups[band] = np.where(counts > 1, np.arange(len(counts)), -1)[inverse]
    return groups


def _is_near(
    index: int, found: list[list[int]], signed: NDArray[np.uint32], shingles: _Shingles, similarity: float
) -> bool:
    candidates = np.unique(np.concatenate([np.asarray(keys) for keys in found]))
    estimates = (signed[candidates] == signed[index]).mean(axis=1)
    order = np.argsort(-estimates, kind="stable")[:_CHECKED]
    likely = [int(candidates[place]) for place in order if estimates[place] >= similarity - _SLACK]
    return any(jaccard(shingles[index], shingles[other]) >= similarity for other in likely)


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two sets, given as arrays of unique values."""
    common = len(np.intersect1d(left, right, assume_unique=True))
    return common / max(1, len(left) + len(right) - common)


class _Shingles:
    """The shingles of some texts, in a temporary file."""

    def __init__(self, indices: NDArray[np.int64], texts: Iterable[str], folder: Path | None) -> None:
        self._places: dict[int, tuple[int, int]] = {}
        start = 0
        with tempfile.TemporaryFile(dir=folder) as file:
            for index, text in zip(indices.tolist(), texts, strict=True):
                hashes = shingles_of(text)
                file.write(hashes.tobytes())
                self._places[index] = start, start + len(hashes)
                start += len(hashes)
            file.flush()
            self._hashes = np.memmap(file, dtype=np.uint64, mode="r") if start else np.zeros(0, dtype=np.uint64)

    def __getitem__(self, index: int) -> NDArray[np.uint64]:
        start, stop = self._places[index]
        return self._hashes[start:stop]


class _WordHashes(dict[str, int]):
    def __missing__(self, word: str) -> int:
        if len(self) >= _KNOWN_WORDS:
            self.clear()
        self[word] = found = xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))
        return found


_hashes = _WordHashes()
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, power, 2**64) for power in range(_SHINGLE)], dtype=np.uint64)


def shingles_of(text: str) -> NDArray[np.uint64]:
    """Return the hashes of a text's shingles, sorted and without duplicates."""
    hashes = np.sort(_shingle_hashes(text))  # np.unique is many times as slow
    first = np.ones(len(hashes), dtype=bool)
    np.not_equal(hashes[1:], hashes[:-1], out=first[1:])
    unique: NDArray[np.uint64] = hashes[first]
    return unique


def _shingle_hashes(text: str) -> NDArray[np.uint64]:
    words = (_ASCII_WORD if text.isascii() else _WORD).findall(text) or [""]
    hashes = np.fromiter(map(_hashes.__getitem__, words), dtype=np.uint64, count=len(words))
    width = min(_SHINGLE, len(hashes))
    # Sums of products wrap modulo 2**64, which is fine for a hash.
    total = np.zeros(len(hashes) - width + 1, dtype=np.uint64)
    for place in range(width):
        total += hashes[place : place + len(total)] * _FACTORS[place]
    return total
