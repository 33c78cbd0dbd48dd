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
    length: int
    rows: list[list[Piece]]

    def __len__(self) -> int:
        return len(self.rows)


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
    rows: list[list[Piece]] = []
    room: list[tuple[int, int]] = []  # (free pairs, row), sorted: the smallest room that fits is found by bisection
    for document in order.tolist():
        for piece in _pieces(document, int(lengths[document]) - 1, length, overlap):
            size = piece.stop - piece.start
            place = bisect.bisect_left(room, (size, -1))
            if place == len(room):
                rows.append([piece])
                free, row = length - size, len(rows) - 1
            else:
                free, row = room.pop(place)
                rows[row].append(piece)
                free -= size
            if free > 1:
                bisect.insort(room, (free, row))
                if len(room) > _OPEN_ROWS:
                    room.pop(0)
    return RowPlan(length, rows)


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


def _pieces(document: int, pairs: int, length: int, overlap: int) -> list[Piece]:
    if not 0 <= overlap < length:
        raise ValueError(f"overlap must be from 0 to length - 1 = {length - 1}, found {overlap}")
    pieces, trained = [], 0
    while trained < pairs:
        start = max(0, trained - overlap)
        stop = min(pairs, start + length)
        pieces.append(Piece(document, start, stop, trained))
        trained = stop
    return pieces
