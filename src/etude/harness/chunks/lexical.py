"""Updatable BM25 index of chunks. Scores depend only on the chunks in the index, not on the order of updates.

Postings are plain dictionaries, so the time to add or remove a chunk depends only on the number of its terms. A term's
postings are converted to arrays when a query first uses the term. Scoring twenty thousand chunks takes milliseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from etude.harness.chunks.terms import terms

K1 = 1.6
B = 0.75
"""K1 and B are the parameters of BM25. They were tuned on packages that no benchmark uses (docs/log/search.md)."""
NAME_COUNTS = 2
"""A term in a chunk's qualified name counts as much as this many occurrences in its text."""


def chunk_terms(path: str, name: str, text: str) -> list[str]:
    return [*terms(path), *(terms(name) * NAME_COUNTS), *terms(text)]


class Lexical:
    def __init__(self) -> None:
        self._postings: dict[str, dict[int, int]] = {}
        self._arrays: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        """Postings of queried terms as arrays; dropped when a chunk with the term is added or removed."""
        self._held: dict[int, Counter[str]] = {}
        self._lengths = np.zeros(1024)
        self._total = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, number: int, said: Iterable[str]) -> None:
        counted = Counter(said)
        self._held[number] = counted
        for term, times in counted.items():
            self._postings.setdefault(term, {})[number] = times
            self._arrays.pop(term, None)
        if number >= len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.zeros(max(number, len(self._lengths)))])
        length = counted.total()
        self._lengths[number] = length
        self._total += length

    def remove(self, number: int) -> None:
        counted = self._held.pop(number)
        for term in counted:
            postings = self._postings[term]
            del postings[number]
            if not postings:
                del self._postings[term]
            self._arrays.pop(term, None)
        self._total -= counted.total()

    def scores(self, said: Iterable[str]) -> dict[int, float]:
        """Return the BM25 score of each chunk that contains one of the terms `said`, by chunk number."""
        if not self._held:
            return {}
        scores = np.zeros(len(self._lengths))
        average = max(self._total, 1) / len(self._held)
        for term, times in sorted(Counter(said).items()):
            if term not in self._postings:
                continue
            numbers, counts = self._array(term)
            rare = math.log(1 + (len(self._held) - len(numbers) + 0.5) / (len(numbers) + 0.5))
            norm = K1 * (1 - B + B * self._lengths[numbers] / average)
            scores[numbers] += times * rare * counts * (K1 + 1) / (counts + norm)
        found = np.flatnonzero(scores)
        return dict(zip(found.tolist(), scores[found].tolist(), strict=True))

    def _array(self, term: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if term not in self._arrays:
            postings = self._postings[term]
            numbers = np.fromiter(postings, np.int64, len(postings))
            self._arrays[term] = numbers, np.fromiter(postings.values(), np.float64, len(postings))
        return self._arrays[term]
