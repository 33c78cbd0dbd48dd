"""Finds exact and near duplicates among texts. The first of a set of similar documents is kept; the result depends only
on the texts and their order.

Two documents are near duplicates if their shingles (five consecutive words) have a Jaccard similarity of at least the
threshold. MinHash (rensa) finds candidates, whose similarity is then computed exactly, so that no document is dropped
because of an estimate. A pair right at the threshold is found with a probability of about 0.998 (20 bands of 6 rows).
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import rensa
import xxhash
from numpy.typing import NDArray

_WORD = re.compile(r"\w+|[^\w\s]")
_SHINGLE = 5
_BANDS, _ROWS = 20, 6
_SLACK = 0.2
_CHECKED = 8
"""Maximum number of candidates per document that are compared exactly, those with the best MinHash estimates."""


def normalised_digest(text: str) -> str:
    """Digest that ignores whitespace, to find exact duplicates and contamination."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()


def same_text(texts: Sequence[str]) -> list[bool]:
    """Return for each text whether an earlier text is the same, apart from whitespace."""
    seen: set[str] = set()
    flags = []
    for text in texts:
        digest = normalised_digest(text)
        flags.append(digest in seen)
        seen.add(digest)
    return flags


def near_duplicates(texts: Sequence[str], similarity: float) -> list[bool]:
    """Return for each text whether it is a near duplicate of an earlier one that is not flagged itself."""
    shingles = _shingles(texts)
    digests = _minhashes(shingles)
    buckets: list[dict[bytes, list[int]]] = [defaultdict(list) for _ in range(_BANDS)]
    flags = []
    for index, mine in enumerate(shingles):
        keys = [band.tobytes() for band in digests[index].reshape(_BANDS, _ROWS)]
        found = [bucket[key] for bucket, key in zip(buckets, keys, strict=True) if key in bucket]
        near = bool(found) and _near_one(index, mine, found, shingles, digests, similarity)
        flags.append(near)
        if not near:
            for bucket, key in zip(buckets, keys, strict=True):
                bucket[key].append(index)
    return flags


def _near_one(
    index: int,
    mine: NDArray[np.uint64],
    found: list[list[int]],
    shingles: list[NDArray[np.uint64]],
    digests: NDArray[np.uint32],
    similarity: float,
) -> bool:
    candidates = np.unique(np.concatenate([np.asarray(keys) for keys in found]))
    estimates = (digests[candidates] == digests[index]).mean(axis=1)
    order = np.argsort(-estimates, kind="stable")[:_CHECKED]
    likely = [int(candidates[place]) for place in order if estimates[place] >= similarity - _SLACK]
    return any(jaccard(mine, shingles[other]) >= similarity for other in likely)


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two sets, given as arrays of unique values."""
    common = len(np.intersect1d(left, right, assume_unique=True))
    return common / max(1, len(left) + len(right) - common)


def _shingles(texts: Sequence[str]) -> list[NDArray[np.uint64]]:
    known: dict[str, int] = {}
    factors = np.array([pow(0x9E3779B97F4A7C15, power, 2**64) for power in range(_SHINGLE)], dtype=np.uint64)
    result = []
    for text in texts:
        words = _WORD.findall(text) or [""]
        for word in words:
            if word not in known:
                known[word] = xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))
        hashes = np.fromiter((known[word] for word in words), dtype=np.uint64, count=len(words))
        width = min(_SHINGLE, len(hashes))
        windows = np.lib.stride_tricks.sliding_window_view(hashes, width)
        # Sums of products wrap modulo 2**64, which is fine for a hash.
        result.append(np.unique((windows * factors[:width]).sum(axis=1, dtype=np.uint64)))
    return result


def _minhashes(shingles: list[NDArray[np.uint64]]) -> NDArray[np.uint32]:
    if not shingles:
        return np.zeros((0, _BANDS * _ROWS), dtype=np.uint32)
    offsets = np.zeros(len(shingles) + 1, dtype=np.uint64)
    offsets[1:] = np.cumsum([len(hashes) for hashes in shingles])
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        np.concatenate(shingles), offsets, num_perm=_BANDS * _ROWS, seed=1
    )
    return np.asarray(matrix.to_rows(), dtype=np.uint32)
