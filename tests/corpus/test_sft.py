"""The loss of demonstrations is on what was sampled, and on nothing else unless asked for."""

from dataclasses import replace

import numpy as np
import pytest

from etude.corpus import CorpusError, Mixture, TraceRows, hold_out
from etude.trace.trace import Segment, SegmentKind, Trace

PROMPT, ACTION, OUTPUT = 1000, 2000, 3000


def segment(number, *sizes):
    """Prompt, action, tool output, action, ...: the ids say what they are."""
    tokens, sampled = [], []
    for place, size in enumerate(sizes):
        base = PROMPT if place == 0 else ACTION if place % 2 else OUTPUT
        tokens += [base + index for index in range(size)]
        sampled += [place % 2 == 1] * size
    count = len(tokens)
    return Segment(
        number,
        None,
        SegmentKind.START,
        np.array(tokens, dtype=np.int32),
        np.array(sampled),
        np.zeros(count, dtype=np.float32),
        np.zeros(count, dtype=np.int32),
        None,
    )


def trace(name, *segments, split="train"):
    return Trace(name, f"task-{name}", split, "g", 0, "oracle", 0, list(segments))


def rows_of(store, length):
    stream = store.stream("demonstrations", length=length, seed=1)
    return [stream.row(number) for number in range(stream.epoch_rows())]


TRACES = [trace("a", segment(0, 6, 3, 5, 4), segment(1, 3, 2)), trace("b", segment(0, 4, 9))]


def test_other_tokens_weigh_what_the_recipe_says():
    for row in rows_of(TraceRows(TRACES, other_token_loss=0.25), 32):
        real = row.documents >= 0
        acted = (row.targets >= ACTION) & (row.targets < OUTPUT)
        assert (row.weights[real & acted] == 1).all()
        assert (row.weights[real & ~acted] == 0.25).all()
        assert (row.weights[~real] == 0).all()


def test_segments_share_rows_but_are_documents_of_their_own():
    aside = replace(segment(1, 2, 2), kind=SegmentKind.ASIDE)
    (row,) = rows_of(TraceRows([*TRACES, trace("c", aside)], other_token_loss=0.0), 64)
    assert np.unique(row.documents).tolist() == [-1, 0, 1, 2]
    for document in range(3):
        assert row.positions[row.documents == document][0] == 0


def test_a_long_segment_trains_each_sampled_token_once_with_context():
    store = TraceRows([trace("long", segment(0, 10, 60))], other_token_loss=0.0)
    rows = rows_of(store, 16)
    trained = np.concatenate([row.targets[row.weights > 0] for row in rows])
    assert sorted(trained.tolist()) == [ACTION + n for n in range(60)]
    for row in rows:
        where = np.flatnonzero(row.weights > 0)
        assert not where.size or row.tokens[0] == PROMPT or where[0] >= 8


def test_the_ids_are_those_of_the_trace():
    batch = Mixture.of({TraceRows(TRACES[1:], other_token_loss=0.0).stream("d", length=16, seed=0): 1.0}).batch(0, 2)
    ids = TRACES[1].segments[0].tokens
    assert batch.tokens[0, : len(ids) - 1].tolist() == ids[:-1].tolist()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_only_train_demonstrations_are_learnt(split):
    with pytest.raises(CorpusError, match=split):
        TraceRows([trace("x", segment(0, 2, 2), split=split)], other_token_loss=0.0)


def test_a_task_is_held_out_whole():
    many = [trace(f"{task}", segment(0, 2, 2)) for task in range(200) for _ in range(2)]
    train, held = hold_out(many, 0.1)
    assert {t.task for t in train}.isdisjoint({t.task for t in held})
    assert 15 < len(held) < 75
    assert len(train) + len(held) == 400
    assert len(hold_out(many[:4], 0.0)[1]) == 2
