"""The proofs of packing: every pair once, no target across documents, positions and ids as attention needs them."""

import bisect
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.corpus.pack import PADDING, Piece, fill_row, plan_rows


def store(lengths):
    """Every token of every document is a different number, so that where a target comes from can be read off."""
    ends = np.cumsum(lengths)
    return [np.arange(end - size, end, dtype=np.int64) + 1 for end, size in zip(ends, lengths, strict=True)]


def rows_of(plan):
    return [plan.row(number) for number in range(len(plan))]


def packed_one_by_one(lengths, order, length, overlap):
    """Best fit as it reads in a textbook, a piece at a time: what the arrays must come to."""
    rows, room = [], []
    for document in order:
        trained, pairs = 0, lengths[document] - 1
        while trained < pairs:
            start = max(0, trained - overlap)
            piece = Piece(document, start, min(pairs, start + length), trained)
            size, trained = piece.stop - piece.start, piece.stop
            place = bisect.bisect_left(room, (size, -1))
            free, row = room.pop(place) if place < len(room) else (length, len(rows))
            if row == len(rows):
                rows.append([])
            rows[row].append(piece)
            if free - size > 1:
                bisect.insort(room, (free - size, row))
                del room[:-64]
    return rows


lengths_and_row = st.tuples(st.lists(st.integers(1, 70), min_size=1, max_size=40), st.integers(4, 32))


@settings(max_examples=150, deadline=None)
@given(lengths_and_row, st.randoms(use_true_random=False), st.booleans())
def test_every_pair_is_a_target_once_and_none_crosses_a_document(case, rng, with_context):
    lengths, length = case
    documents = store(lengths)
    order = list(range(len(lengths)))
    rng.shuffle(order)
    overlap = length // 2 if with_context else 0
    plan = plan_rows(np.array(lengths), np.array(order), length, overlap=overlap)
    seen = Counter()
    for pieces in rows_of(plan):
        row = fill_row(pieces, length, documents.__getitem__)
        real = row.documents != PADDING
        # A target is the token that follows in the same document: numbers of one document are consecutive.
        assert (row.targets[real] == row.tokens[real] + 1).all()
        homes = {int(token): home for home, ids in enumerate(documents) for token in ids}
        for token, target in zip(row.tokens[real], row.targets[real], strict=True):
            assert homes[int(token)] == homes[int(target)]
        seen.update(row.targets[row.weights > 0].tolist())
        assert (row.weights[~real] == 0).all()
        for piece_id in np.unique(row.documents[real]):
            here = row.documents == piece_id
            assert (row.positions[here] == np.arange(here.sum())).all()
            assert len({homes[int(token)] for token in row.tokens[here]}) == 1
    assert seen == Counter({int(token): 1 for ids in documents for token in ids[1:]})


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 90), max_size=300), st.integers(1, 40), st.randoms(use_true_random=False), st.data())
def test_arrays_hold_the_same_rows_as_a_list_of_pieces(lengths, length, rng, data):
    order = list(range(len(lengths)))
    rng.shuffle(order)
    overlap = data.draw(st.integers(0, length - 1))
    plan = plan_rows(np.array(lengths, dtype=np.int64), np.array(order, dtype=np.int64), length, overlap=overlap)
    assert rows_of(plan) == packed_one_by_one(lengths, order, length, overlap)


def test_a_plan_takes_a_few_bytes_a_document():
    lengths, order = np.random.default_rng(0).integers(2, 200, size=30_000), np.arange(30_000)
    tracemalloc.start()
    try:
        plan = plan_rows(lengths, order, 256)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plan.pieces) == 30_000
    assert kept < 32 * 30_000
    assert peak < 128 * 30_000


def test_a_document_that_fits_is_never_split_and_rows_are_well_filled():
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 200, size=2000)
    plan = plan_rows(lengths, rng.permutation(2000), 256)
    pieces = Counter(piece.document for row in rows_of(plan) for piece in row)
    assert set(pieces.values()) == {1}
    assert (lengths - 1).sum() / (len(plan) * 256) > 0.95


def test_a_continued_document_brings_context_without_training_on_it_again():
    (document,) = store([41])
    first, second, third, *_ = rows_of(plan_rows(np.array([41]), np.array([0]), 16, overlap=8))
    assert [piece[0][1:] for piece in (first, second, third)] == [(0, 16, 0), (8, 24, 16), (16, 32, 24)]
    row = fill_row(second, 16, lambda _: document)
    assert row.weights.tolist() == [0.0] * 8 + [1.0] * 8
    assert row.positions.tolist() == list(range(16))


def test_weights_belong_to_targets():
    tokens, weights = np.array([5, 6, 7, 8]), np.array([1, 0, 0.5, 1], dtype=np.float32)
    (pieces,) = rows_of(plan_rows(np.array([4]), np.array([0]), 6))
    row = fill_row(pieces, 6, lambda _: tokens, lambda _: weights)
    assert row.targets.tolist() == [6, 7, 8, 0, 0, 0]
    assert row.weights.tolist() == [0, 0.5, 1, 0, 0, 0]


def test_overlap_must_leave_room():
    with pytest.raises(ValueError, match="overlap"):
        plan_rows(np.array([9]), np.array([0]), 4, overlap=4)
