"""Index of a workspace's chunks, searched by words and, if there is an embedder, by meaning.

Before each search the contents of every file are compared with the index, so that changes by edits and commands are
seen. Without an embedder, a result depends only on the current files. With one, the two rankings are fused, so that a
chunk that ranks high in both comes first. One search embeds a limited number of new chunks, beginning with those that
rank best by words; `Found` says how many chunks have been embedded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash

from etude.harness.chunks.chunk import Chunk, chunks_of
from etude.harness.chunks.embedder import Embedder, EmbeddingFailed, Vectors
from etude.harness.chunks.lexical import Lexical, chunk_terms
from etude.harness.chunks.terms import terms
from etude.harness.chunks.vectors import VectorStore, key_of
from etude.harness.paths import within
from etude.sandbox.contract import RequestRefused

MOST_FILES = 20_000
"""Maximum number of files that one search reads; in a larger workspace the search must name a folder."""
MOST_NEW = 1_000
"""Maximum number of chunks that one search embeds: about twenty seconds of one core with the shipped model."""
EMBEDDED_CHARACTERS = 4_000
RANK = 5
"""Constant of reciprocal rank fusion: rank r, counted from 0, adds weight / (RANK + r) to a chunk's score."""
MEANING = 2.0
"""Weight of the ranking by meaning when the two rankings are fused; the ranking by words has weight 1. RANK and
MEANING, the constants of this fusion, were tuned on packages that no benchmark uses (docs/log/search.md)."""
_AT_ONCE = 50
"""Number of files that are indexed before other tasks of the event loop may run."""


class Readable(Protocol):
    async def files(self) -> list[str]: ...

    async def read(self, path: str) -> bytes: ...


class TooManyFiles(Exception):
    """There are more files than a search reads (MOST_FILES). The message is their number."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rankings of the same chunks by words and by meaning, as lists of chunk numbers, best first."""

    by_words: list[int]
    by_meaning: list[int]

    def fused(self) -> list[int]:
        """Combine the ranking by words and the ranking by meaning by reciprocal rank fusion. Chunks with equal scores
        are ordered by words, then by meaning."""
        scores: dict[int, float] = {}
        for weight, ranked in ((1.0, self.by_words), (MEANING, self.by_meaning)):
            for rank, number in enumerate(ranked):
                scores[number] = scores.get(number, 0.0) + weight / (RANK + rank)
        order = {number: rank for rank, number in enumerate(dict.fromkeys([*self.by_words, *self.by_meaning]))}
        return sorted(scores, key=lambda number: (-scores[number], order[number]))


@dataclass(frozen=True, slots=True)
class Found:
    chunks: list[Chunk]
    embedded: int = 0
    """Number of searched chunks that have a vector; 0 without an embedder."""
    searched: int = 0
    problem: str = ""
    """Why the ranking by meaning failed, in one line; empty if it did not."""


class ChunkIndex:
    def __init__(
        self, embedder: Embedder | None = None, store: VectorStore | None = None, *, most_new: int = MOST_NEW
    ) -> None:
        self.chunks: dict[int, Chunk] = {}
        self._files: dict[str, tuple[bytes, list[int]]] = {}
        self._free: list[int] = []
        self._lexical = Lexical()
        self._embedder = embedder
        self._store = store or (VectorStore(embedder.name) if embedder else None)
        self._keys: dict[int, bytes] = {}
        self._matrix: tuple[list[int], Vectors] | None = None
        """The vectors that were compared with the last query, and the numbers of their chunks. Dropped when a chunk is
        added, removed or embedded."""
        self._most_new = most_new
        self._lock = asyncio.Lock()

    async def search(self, workspace: Readable, query: str, folder: str = ".", most: int = 10) -> Found:
        """Return the best `most` chunks for a query at or below `folder`. Raises TooManyFiles."""
        async with self._lock:
            await self.refresh(workspace, folder)
            numbers = self.numbers(folder)
            problem, embedded = "", 0
            ranking = Ranking(self.by_words(query, numbers), [])
            if self._embedder is not None and numbers:
                try:
                    embedded = await self.embed_some(list(dict.fromkeys([*ranking.by_words, *numbers])))
                    ranking = await self.rank(query, numbers)
                except EmbeddingFailed as error:
                    problem = " ".join(str(error).split())
            best = [self.chunks[number] for number in ranking.fused()[:most]]
            return Found(best, embedded, len(numbers), problem)

    async def refresh(self, workspace: Readable, folder: str = ".") -> None:
        """Update the index for the files at or below `folder`; entries of other files are left unchanged."""
        paths = [path for path in await workspace.files() if within(path, folder)]
        if len(paths) > MOST_FILES:
            raise TooManyFiles(len(paths))
        for path in self._files.keys() - set(paths):
            if within(path, folder):
                self._drop(path)
        changed: list[tuple[str, bytes, bytes]] = []
        for path in paths:
            try:
                data = await workspace.read(path)
            except (RequestRefused, OSError):
                self._drop(path)
                continue
            digest = xxhash.xxh3_128_digest(data)
            if path not in self._files or self._files[path][0] != digest:
                changed.append((path, digest, data))
            if len(changed) == _AT_ONCE:
                await self._take(changed)
                changed = []
        await self._take(changed)

    async def _take(self, changed: Sequence[tuple[str, bytes, bytes]]) -> None:
        if not changed:
            return
        # The thread must not use shared state, because it continues to run if the search is cancelled.
        made = await asyncio.to_thread(_made, changed)
        for (path, digest, _), parts in zip(changed, made, strict=True):
            self._drop(path)
            numbers: list[int] = []
            for chunk, said in parts:
                number = self._free.pop() if self._free else len(self.chunks)
                self.chunks[number] = chunk
                self._lexical.add(number, said)
                numbers.append(number)
            self._files[path] = digest, numbers
            self._matrix = None

    def _drop(self, path: str) -> None:
        if path not in self._files:
            return
        for number in self._files.pop(path)[1]:
            del self.chunks[number]
            self._lexical.remove(number)
            self._keys.pop(number, None)
            self._free.append(number)
        self._matrix = None

    def numbers(self, folder: str = ".") -> list[int]:
        """Return the numbers of the chunks in files at or below `folder`, ordered by file and line."""
        below = sorted(path for path in self._files if within(path, folder))
        return [number for path in below for number in self._files[path][1]]

    def by_words(self, query: str, numbers: Iterable[int]) -> list[int]:
        """Rank the given chunks by BM25. Chunks that contain no term of the query are left out."""
        scores = self._lexical.scores(terms(query))
        # Scores are rounded, so that the order of equal chunks does not depend on the last bit of a sum.
        return sorted((n for n in numbers if n in scores), key=lambda n: -round(scores[n], 9))

    async def rank(self, query: str, numbers: list[int]) -> Ranking:
        """Rank chunks by words and by meaning. This neither updates the index nor embeds chunks."""
        by_meaning = await self.by_meaning(query, numbers) if self._embedder is not None else []
        return Ranking(self.by_words(query, numbers), by_meaning)

    async def by_meaning(self, query: str, numbers: list[int]) -> list[int]:
        """Rank chunks by the similarity of their vectors to the query's. Chunks without a vector are left out."""
        assert self._embedder is not None
        known, matrix = self._vectors(numbers)
        if not known:
            return []
        asked = await self._embedder.embed([f"{self._embedder.asks}{query}"])
        if asked.shape[1] != matrix.shape[1]:
            raise EmbeddingFailed(f"{self._embedder.name} returned vectors of another length than before")
        near = np.round(matrix @ asked[0].astype(np.float16).astype(np.float32), 5)
        return [known[index] for index in np.argsort(-near, kind="stable").tolist()]

    async def embed_some(self, numbers: Sequence[int]) -> int:
        """Embed the given chunks that have no vector yet, in order, up to the limit per search. Return how many of the
        given chunks have a vector afterwards."""
        assert self._embedder is not None
        assert self._store is not None
        missing = [n for n in numbers if self._store.get(self._key(n)) is None]
        wanted = list({self._key(n): n for n in missing[: self._most_new]}.values())
        for begin in range(0, len(wanted), self._embedder.batch):
            some = wanted[begin : begin + self._embedder.batch]
            vectors = await self._embedder.embed([embedded_text(self.chunks[n]) for n in some])
            self._store.add([self._key(n) for n in some], vectors)
            self._matrix = None
        return len(numbers) - len(missing) + min(len(missing), self._most_new)

    def _key(self, number: int) -> bytes:
        if number not in self._keys:
            self._keys[number] = key_of(embedded_text(self.chunks[number]))
        return self._keys[number]

    def _vectors(self, numbers: list[int]) -> tuple[list[int], Vectors]:
        assert self._store is not None
        if self._matrix is None or self._matrix[0] != numbers:
            held = [(n, vector) for n in numbers if (vector := self._store.get(self._key(n))) is not None]
            width = len(held[0][1]) if held else 0
            matrix = np.array([vector for _, vector in held], np.float32).reshape(len(held), width)
            self._matrix = [n for n, _ in held], matrix
        return self._matrix


def embedded_text(chunk: Chunk) -> str:
    return f"{chunk.name}\n{chunk.text}"[:EMBEDDED_CHARACTERS]


def _made(changed: Sequence[tuple[str, bytes, bytes]]) -> list[list[tuple[Chunk, list[str]]]]:
    return [
        [(chunk, chunk_terms(chunk.path, chunk.name, chunk.text)) for chunk in chunks_of(path, data)]
        for path, _, data in changed
    ]
