"""Batches are pure functions of (seed, step); shares are exact; epochs are complete."""

import weakref
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.corpus import CorpusError, Mixture, RowStream, mix, mixture, open_corpus, write_shards
from etude.corpus.pack import RowPlan, plan_rows
from etude.corpus.shards import Tokens

LENGTHS = np.array([5, 9, 30, 12, 7, 18, 4, 25])


def stream(name="a", *, seed=1, length=16, mark=0):
    documents = [np.arange(size) + 100 * index + 10_000 * mark for index, size in enumerate(LENGTHS)]
    return RowStream(name, np.arange(len(LENGTHS)), LENGTHS, documents.__getitem__, length=length, seed=seed)


def same(left, right):
    return all(map(np.array_equal, left, right))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(0, 2**40))
def test_a_batch_is_a_function_of_seed_and_step(steps, seed):
    def made():
        return Mixture.of({stream("a", seed=seed): 0.3, stream("b", seed=seed, mark=1): 0.7})

    once = made()
    for step in steps:
        assert same(once.batch(step, 3), made().batch(step, 3))


def test_other_seeds_names_and_epochs_read_in_another_order():
    first = stream().row(0)
    assert not same(first, stream(seed=2).row(0))
    assert not same(first, stream("b").row(0))
    again = stream()
    rows = again.epoch_rows()
    assert any(not same(again.row(number), again.row(number + rows)) for number in range(rows))


def test_an_epoch_has_every_pair_once():
    one = stream()
    seen = Counter()
    for number in range(one.epoch_rows()):
        row = one.row(number)
        seen.update(row.targets[row.weights > 0].tolist())
    expected = [100 * index + place for index, size in enumerate(LENGTHS) for place in range(1, size)]
    assert seen == Counter(expected)


def test_a_stream_keeps_the_plans_of_two_epochs_and_makes_older_ones_again(monkeypatch):
    made = weakref.WeakSet()

    class Noted(RowPlan):
        """A plan without slots, which a weak reference can point to."""

        __hash__ = object.__hash__

    def plan_rows_and_note(*arguments, **options):
        plan = plan_rows(*arguments, **options)
        made.add(noted := Noted(plan.length, plan.pieces, plan.firsts))
        return noted

    monkeypatch.setattr(mix, "plan_rows", plan_rows_and_note)
    one = stream()
    rows = [one.row(number) for number in range(one.epoch_rows() * 10)]
    assert len(made) == 2
    assert all(same(row, one.row(number)) for number, row in enumerate(rows))


@pytest.mark.parametrize("shares", [(0.25, 0.75), (0.1, 0.2, 0.7), (1, 1, 1), (0.5, 0.25, 0.125, 0.125)])
def test_shares_are_kept_at_every_moment(shares):
    streams = [stream(str(mark), mark=mark) for mark in range(len(shares))]
    both = Mixture.of(dict(zip(streams, shares, strict=True)))
    given_rows = Counter()
    for number in range(400):
        row = both.row(number)
        given_rows[int(row.tokens.max()) // 10_000] += 1
        for mark, share in enumerate(shares):
            assert abs(given_rows[mark] - share / sum(shares) * (number + 1)) < 2


def test_a_stream_gives_its_rows_in_order_whatever_the_shares():
    alone = stream("a")
    mixed = Mixture.of({stream("a"): 0.4, stream("b", mark=1): 0.6})
    mine = [row for row in map(mixed.row, range(50)) if row.tokens.max() < 10_000]
    assert all(same(row, alone.row(number)) for number, row in enumerate(mine))


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(CorpusError, match="all 0"):
        Mixture.of({stream(): 0.0})
    with pytest.raises(CorpusError, match="one length"):
        Mixture.of({stream(): 1.0, stream(length=8): 1.0})
    with pytest.raises(CorpusError, match="no documents"):
        RowStream("none", np.zeros(0, dtype=np.int64), LENGTHS, lambda _: LENGTHS, length=8, seed=0)


@pytest.mark.parametrize("weight", [1.0, 3.0, 1e-6])
def test_a_named_source_is_read_as_often_as_its_weight_says(tmp_path, weight):
    sizes = {"stdlib": 40, "mine": 10, "generated": 30}
    documents = [
        Tokens(np.full(17, mark, dtype=np.uint32), "code", source)
        for mark, (source, count) in enumerate(sizes.items())
        for _ in range(count)
    ]
    splits = {"train": lambda first: documents[first:], "valid": lambda first: documents[first:1]}
    write_shards(tmp_path, splits, vocab_size=9, shard_tokens=400, provenance={}, weights={"mine": weight})
    mixed = mixture(open_corpus(tmp_path).train, stdlib_share=0.5, length=16, seed=1)
    rows = 2000
    read = Counter(int(mixed.row(number).tokens[0]) for number in range(rows))
    assert read[2] == pytest.approx(rows * 0.5, abs=2)
    mine = 10 * weight / (40 + 10 * weight)
    assert read[1] == pytest.approx(rows * 0.5 * mine, abs=2)
    assert len(mixed.streams) == 3, "however small its share is"
