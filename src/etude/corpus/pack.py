"""Packs documents into rows of one length, so that no next-token target ever crosses a document boundary.

A document of n tokens gives n - 1 pairs of (token, next token). A piece is a run of pairs of one document; documents
longer than a row are split into several pieces. A row holds pieces side by side. Each piece has its own document id and
positions starting at 0, and attention stays within it. Every pair is trained exactly once per epoch; the rest of a row
is padding (id -1, weight 0). With `overlap`, each later piece of a long document begins with that many pairs of the
piece before it, as context without loss.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_OPEN_ROWS = 64
_BLOCK = 1 << 16
PADDING = -1
"""Document id of padding positions; the network treats all negative ids as padding."""


class Piece(NamedTuple):
    """A run of adjacent (token, next token) pairs of one document. Pair i predicts token i + 1 from token i."""

    document: int
    start: int
    """Index of the piece's first pair among the document's pairs."""
    stop: int
    trained_from: int
    """Index of the first pair to train on. Earlier pairs of the piece are context, without loss."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The pieces of every row, in arrays: 16 bytes a piece, where a list of tuples takes hundreds."""

    length: int
    pieces: NDArray[np.signedinteger]
    """[pieces, 4]: the fields of Piece, row after row."""
    firsts: NDArray[np.int64]
    """[rows + 1]: index of each row's first piece, and the number of pieces."""

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def row(self, number: int) -> list[Piece]:
        return [Piece(*fields) for fields in self.pieces[self.firsts[number] : self.firsts[number + 1]].tolist()]


class Row(NamedTuple):
    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    positions: NDArray[np.int64]
    documents: NDArray[np.int64]
    """Document id of each position: 0, 1, ... for the row's pieces, PADDING elsewhere."""


class Batch(Row):
    """Several rows, stacked: every array is [rows, length]."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Batch:
        return cls(*(np.stack(arrays) for arrays in zip(*rows, strict=True)))


def plan_rows(lengths: NDArray[np.int64], order: NDArray[np.int64], length: int, *, overlap: int = 0) -> RowPlan:
    """Assign documents, in the given order, to rows. A document is cut into pieces of at most `length` pairs (see the
    module). Each piece goes to the fullest open row it fits into (best fit). At most _OPEN_ROWS rows are open. A pure
    function of its arguments."""
    if not 0 <= overlap < length:
        raise ValueError(f"overlap must be from 0 to length - 1 = {length - 1}, found {overlap}")
    pieces = _pieces(lengths, order, length, overlap)
    row_of = _best_fit(pieces[:, 2] - pieces[:, 1], length)
    firsts = np.concatenate([[0], np.cumsum(np.bincount(row_of))])
    return RowPlan(length, pieces[np.argsort(row_of, kind="stable")], firsts)


def fill_row(
    pieces: Sequence[Piece],
    length: int,
    tokens_of: Callable[[int], NDArray[np.int64]],
    weights_of: Callable[[int], NDArray[np.float32]] | None = None,
) -> Row:
    """Build a row. `weights_of(document)[i]` is the loss weight of token i as a target; without it, every token has
    1."""
    row = Row(
        np.zeros(length, dtype=np.int64),
        np.zeros(length, dtype=np.int64),
        np.zeros(length, dtype=np.float32),
        np.zeros(length, dtype=np.int64),
        np.full(length, PADDING, dtype=np.int64),
    )
    at = 0
    for number, piece in enumerate(pieces):
        here = slice(at, at + piece.stop - piece.start)
        tokens = tokens_of(piece.document)
        row.tokens[here] = tokens[piece.start : piece.stop]
        row.targets[here] = tokens[piece.start + 1 : piece.stop + 1]
        row.positions[here] = np.arange(piece.stop - piece.start)
        row.documents[here] = number
        trained = slice(at + piece.trained_from - piece.start, here.stop)
        if weights_of is None:
            row.weights[trained] = 1.0
        else:
            row.weights[trained] = weights_of(piece.document)[piece.trained_from + 1 : piece.stop + 1]
        at = here.stop
    return row


def _pieces(
    lengths: NDArray[np.int64], order: NDArray[np.int64], length: int, overlap: int
) -> NDArray[np.signedinteger]:
    """Return the pieces of all documents, in order: piece n of a document begins n * (length - overlap) pairs into
    it."""
    step = length - overlap
    pairs = np.maximum(lengths[order] - 1, 0)
    counts = np.where(pairs > 0, 1 + np.maximum(-(-(pairs - length) // step), 0), 0)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    highest = max(len(lengths), int(lengths.max(initial=0)))
    pieces = np.empty((len(number), 4), dtype=np.int32 if highest < 2**31 else np.int64)
    pieces[:, 0] = np.repeat(order, counts)
    pieces[:, 1] = number * step
    pieces[:, 2] = np.minimum(np.repeat(pairs, counts), pieces[:, 1] + length)
    pieces[:, 3] = np.where(number > 0, pieces[:, 1] + overlap, 0)
    return pieces


def _best_fit(sizes: NDArray[np.signedinteger], length: int) -> NDArray[np.int32]:
    """Return the row of each piece, given the pieces' sizes."""
    row_of = np.empty(len(sizes), dtype=np.int32)
    room: list[tuple[int, int]] = []  # (free pairs, row), sorted: the smallest room that fits is found by bisection
    rows = 0
    for first in range(0, len(sizes), _BLOCK):
        for place, size in enumerate(sizes[first : first + _BLOCK].tolist(), first):
            fitting = bisect.bisect_left(room, (size, -1))
            if fitting == len(room):
                free, row, rows = length, rows, rows + 1
            else:
                free, row = room.pop(fitting)
            row_of[place] = row
            if free - size > 1:
                bisect.insort(room, (free - size, row))
                if len(room) > _OPEN_ROWS:
                    room.pop(0)
    return row_of
