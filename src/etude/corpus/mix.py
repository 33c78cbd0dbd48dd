"""Chooses the rows that a training step reads, as a pure function of (seed, step).

A row stream is an endless sequence of packed rows, epoch after epoch; each epoch is a new permutation of the documents,
drawn from (seed, name, epoch). A mixture assigns each row number to a stream by the streams' shares alone: however many
rows were read, each stream has provided its share of them, give or take a row or two. So resuming needs no saved
state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from etude.corpus.errors import CorpusError
from etude.corpus.pack import Batch, Row, RowPlan, fill_row, plan_rows
from etude.corpus.shards import Shards

LOOKUP = "lookup"
"""Kind of short look-up documents (a listing and questions about it), which base pretraining reads first."""

_PRECISION = 10_000


class RowStream:
    """An endless sequence of packed rows over a set of documents."""

    def __init__(
        self,
        name: str,
        documents: NDArray[np.int64],
        lengths: NDArray[np.int64],
        tokens_of: Callable[[int], NDArray[np.int64]],
        *,
        length: int,
        seed: int,
        weights_of: Callable[[int], NDArray[np.float32]] | None = None,
        overlap: int = 0,
    ) -> None:
        """`documents` are the documents' indices. Document i has lengths[i] tokens, which tokens_of(i) returns."""
        self.name, self.length = name, length
        self._documents = documents[lengths[documents] > 1]
        if not len(self._documents):
            raise CorpusError(f"row stream {name!r} has no documents: the corpus lacks them")
        self._lengths, self._tokens_of, self._weights_of = lengths, tokens_of, weights_of
        self._seed, self._overlap = seed, overlap
        # Only two plans are kept, for steps at the turn of an epoch; an older one is made again.
        self._plan = lru_cache(maxsize=2)(self._plan_epoch)
        self._ends: list[int] = []
        """Number of rows up to the end of each epoch that was reached."""

    def row(self, number: int) -> Row:
        """Return packed row `number`, counted from 0 across all epochs."""
        while not self._ends or number >= self._ends[-1]:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._plan(len(self._ends))))
        epoch = int(np.searchsorted(self._ends, number, side="right"))
        first = self._ends[epoch - 1] if epoch else 0
        return fill_row(self._plan(epoch).row(number - first), self.length, self._tokens_of, self._weights_of)

    def epoch_rows(self) -> int:
        """Number of rows in the first epoch."""
        self.row(0)
        return self._ends[0]

    def _plan_epoch(self, epoch: int) -> RowPlan:
        digest = hashlib.sha256(f"rows/{self._seed}/{self.name}/{epoch}".encode()).digest()
        order = np.random.default_rng(int.from_bytes(digest[:8], "big")).permutation(self._documents)
        return plan_rows(self._lengths, order, self.length, overlap=self._overlap)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Row streams, interleaved evenly in proportion to their shares."""

    streams: tuple[tuple[RowStream, Fraction], ...]

    @classmethod
    def of(cls, shares: Mapping[RowStream, float]) -> Mixture:
        """Mix streams by their shares, which need not sum to 1; a share of 0 leaves the stream out."""
        kept = {stream: max(round(share * _PRECISION), share > 0) for stream, share in shares.items()}
        total = sum(kept.values())
        if total <= 0:
            raise CorpusError("the shares of the mixture are all 0: nothing to read")
        if len({stream.length for stream in kept}) > 1:
            raise CorpusError("the streams of a mixture must have rows of one length")
        return cls(tuple((stream, Fraction(share, total)) for stream, share in kept.items() if share))

    def batch(self, step: int, rows: int) -> Batch:
        """Return the batch of a step. Steps may be requested in any order, any number of times."""
        return Batch.of([self.row(step * rows + index) for index in range(rows)])

    def row(self, number: int) -> Row:
        rest = Fraction(1)
        for stream, share in self.streams:
            # This stream's share of the rows that earlier streams did not take. Rows that it does not take either are
            # renumbered for the next stream.
            part = share / rest
            given = _floor(number * part)
            if _floor((number + 1) * part) > given:
                return stream.row(given)
            number -= given
            rest -= share
        raise AssertionError("the last stream takes every row that is left")


def _floor(value: Fraction) -> int:
    return value.numerator // value.denominator


def mixture(shards: Shards, *, stdlib_share: float, length: int, seed: int) -> Mixture:
    """Mix code (with share `stdlib_share`) and generated documents. If the corpus has only one of the two, all rows
    come from it. Within the code, a document of a named source is read as often as that source's weight says, compared
    with those of the standard library and of folders."""
    code = {"code": np.concatenate([shards.of_source("stdlib"), shards.of_source("folder")])}
    code |= {f"code/{name}": shards.of_source(name) for name in shards.weights}
    generated = shards.of_source("generated")
    tokens = {
        name: int(shards.lengths[documents].sum()) * shards.weights.get(name.removeprefix("code/"), 1.0)
        for name, documents in code.items()
        if _any(shards, documents)
    }
    if not _any(shards, generated):
        stdlib_share = 1.0
    elif not tokens:
        stdlib_share = 0.0
    parts = [(name, code[name], stdlib_share * part / sum(tokens.values())) for name, part in tokens.items()]
    if _any(shards, generated):
        parts.append(("generated", generated, 1.0 - stdlib_share))
    return Mixture.of(
        {
            RowStream(name, documents, shards.lengths, shards.document, length=length, seed=seed): share
            for name, documents, share in parts
        }
    )


def _any(shards: Shards, documents: NDArray[np.int64]) -> bool:
    """Whether any of these documents has a token to predict."""
    return bool((shards.lengths[documents] > 1).any())
