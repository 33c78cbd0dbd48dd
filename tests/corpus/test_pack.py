"""The proofs of packing: every pair once, no target across documents, positions and ids as attention needs them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.corpus.pack import PADDING, fill_row, plan_rows


def store(lengths):
    """Every token of every document is a different number, so that where a target comes from can be read off."""
    ends = np.cumsum(lengths)
    return [np.arange(end - size, end, dtype=np.int64) + 1 for end, size in zip(ends, lengths, strict=True)]


lengths_and_row = st.tuples(st.lists(st.integers(1, 70), min_size=1, max_size=40), st.integers(4, 32))


@settings(max_examples=60, deadline=None)
@given(lengths_and_row, st.randoms(use_true_random=False), st.booleans())
def test_every_pair_is_a_target_once_and_none_crosses_a_document(case, rng, with_context):
    lengths, length = case
    documents = store(lengths)
    order = list(range(len(lengths)))
    rng.shuffle(order)
    overlap = length // 2 if with_context else 0
    plan = plan_rows(np.array(lengths), np.array(order), length, overlap=overlap)
    seen = Counter()
    for pieces in plan.rows:
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


def test_a_document_that_fits_is_never_split_and_rows_are_well_filled():
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 200, size=2000)
    plan = plan_rows(lengths, rng.permutation(2000), 256)
    pieces = Counter(piece.document for row in plan.rows for piece in row)
    assert set(pieces.values()) == {1}
    assert (lengths - 1).sum() / (len(plan) * 256) > 0.95


def test_a_continued_document_brings_context_without_training_on_it_again():
    (document,) = store([41])
    first, second, third, *_ = plan_rows(np.array([41]), np.array([0]), 16, overlap=8).rows
    assert [piece[0][1:] for piece in (first, second, third)] == [(0, 16, 0), (8, 24, 16), (16, 32, 24)]
    row = fill_row(second, 16, lambda _: document)
    assert row.weights.tolist() == [0.0] * 8 + [1.0] * 8
    assert row.positions.tolist() == list(range(16))


def test_weights_belong_to_targets():
    tokens, weights = np.array([5, 6, 7, 8]), np.array([1, 0, 0.5, 1], dtype=np.float32)
    (pieces,) = plan_rows(np.array([4]), np.array([0]), 6).rows
    row = fill_row(pieces, 6, lambda _: tokens, lambda _: weights)
    assert row.targets.tolist() == [6, 7, 8, 0, 0, 0]
    assert row.weights.tolist() == [0, 0.5, 1, 0, 0, 0]


def test_overlap_must_leave_room():
    with pytest.raises(ValueError, match="overlap"):
        plan_rows(np.array([9]), np.array([0]), 4, overlap=4)
