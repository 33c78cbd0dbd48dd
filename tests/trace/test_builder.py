from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.test_columns import same_segments

from etude.trace import UNSAMPLED_VERSION, BreakKind, SegmentKind, Trace, TraceBuilder


def test_segments_hold_what_was_given_and_what_was_sampled(trace: Trace) -> None:
    first, second = trace.segments
    assert first.tokens.tolist() == [1, 2, 20, 30, 100, 101, 102, 5, 40, 8, 4, 100, 101]
    assert first.sampled.tolist() == [False] * 4 + [True] * 3 + [False] * 4 + [True] * 2
    assert first.versions.tolist() == [-1] * 4 + [4] * 3 + [-1] * 4 + [5] * 2
    assert (first.logprobs[~first.sampled] == 0).all()
    assert (second.parent, second.kind) == (first.id, SegmentKind.SUMMARY)
    assert trace.version_span() == (4, 5)


def test_late_experts_fill_the_gap_and_known_ones_stay(trace: Trace) -> None:
    experts = trace.segments[0].experts
    assert experts is not None
    assert experts.shape == (13, 2, 2)
    unknown = np.flatnonzero((experts == 0xFFFF).all(axis=(1, 2)))
    assert unknown.tolist() == [12]


def test_a_position_keeps_its_first_experts() -> None:
    builder = TraceBuilder()
    builder.start_segment(SegmentKind.START, None, [1, 2])
    token, nothing, version = np.array([7], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    first = np.array([[[1]], [[2]], [[0xFFFF]]], np.uint16)
    builder.sampled(token, nothing, version, experts=first, experts_from=0)
    builder.sampled(token, nothing, version, experts=np.array([[[9]], [[9]], [[9]], [[9]]], np.uint16), experts_from=0)
    experts = builder.segments()[0].experts
    assert experts is not None
    assert experts.ravel().tolist() == [1, 2, 9, 9]


@settings(deadline=None)
@given(turns=st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=4), st.lists(st.integers(0, 99), min_size=1))))
def test_any_order_of_turns_gives_parallel_arrays(turns: list[tuple[list[int], list[int]]]) -> None:
    builder = TraceBuilder()
    builder.start_segment(SegmentKind.START, None, [1])
    for version, (given_ids, sampled_ids) in enumerate(turns):
        builder.extend(given_ids)
        tokens = np.array(sampled_ids, np.int32)
        builder.sampled(tokens, np.zeros(len(tokens), np.float32), np.full(len(tokens), version, np.int32))
    (segment,) = builder.segments()
    assert segment.tokens.tolist() == [1, *(token for turn in turns for part in turn for token in part)]
    assert len(segment.sampled) == len(segment.logprobs) == len(segment.versions) == len(segment.tokens)
    assert ((segment.versions == UNSAMPLED_VERSION) == ~segment.sampled).all()
    assert segment.experts is None


def test_what_does_not_fit_is_refused() -> None:
    builder = TraceBuilder()
    assert builder.segments() == []
    with pytest.raises(ValueError, match="start_segment comes before"):
        builder.extend([1])
    with pytest.raises(ValueError, match="cannot be a parent"):
        builder.start_segment(SegmentKind.FORK, 0, [1])
    builder.start_segment(SegmentKind.START, None, [1])
    one = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="1 tokens, 2 log-probs"):
        builder.sampled(one, np.zeros(2, np.float32), one)
    with pytest.raises(ValueError, match="do not end at 2"):
        builder.sampled(one, np.zeros(1, np.float32), one, experts=np.zeros((5, 1, 1), np.uint16))
    with pytest.raises(ValueError, match="no segment 1: there are 1"):
        builder.extend([1], segment=1)
    with pytest.raises(ValueError, match="break at position 3 of a segment of 2"):
        builder.broken(BreakKind.EDITED, 3)


@settings(deadline=None)
@given(st.data())
def test_segments_that_grow_at_once_are_those_that_grow_one_after_another(data: st.DataObject) -> None:
    """Every segment is what it would be alone, however the records of several agents alternate."""
    count = data.draw(st.integers(1, 3))
    acts = st.tuples(st.integers(0, count - 1), st.sampled_from(["given", "sampled", "break"]), st.integers(1, 3))
    played = data.draw(st.lists(acts, max_size=12))
    together, alone = TraceBuilder(), [TraceBuilder() for _ in range(count)]
    for number, builder in enumerate(alone):
        together.start_segment(SegmentKind.AGENT, None, [number])
        builder.start_segment(SegmentKind.AGENT, None, [number])
    for number, what, size in played:
        for builder, segment in ((together, number), (alone[number], None)):
            ids = np.full(size, 7 * number, np.int32)
            if what == "given":
                builder.extend(ids.tolist(), segment=segment)
            elif what == "sampled":
                experts = np.full((size, 1, 1), size, np.uint16)
                start = len(builder.segments()[segment or 0].tokens)
                builder.sampled(ids, ids.astype(np.float32), ids, experts=experts, experts_from=start, segment=segment)
            else:
                builder.broken(BreakKind.DROPPED, 1, str(size), segment=segment)
    for segment, builder in zip(together.segments(), alone, strict=True):
        same_segments([replace(segment, id=0)], builder.segments())


def test_what_training_uses_and_what_the_agent_itself_did(trace: Trace) -> None:
    builder = TraceBuilder()
    start = builder.start_segment(SegmentKind.START, None, [1])
    called = builder.start_segment(SegmentKind.AGENT, start, [2])
    aside = builder.start_segment(SegmentKind.ASIDE, None, [3])
    went_on = builder.start_segment(SegmentKind.SUMMARY, called, [4])
    forked = builder.start_segment(SegmentKind.FORK, start, [5])
    empty = builder.start_segment(SegmentKind.SUMMARY, forked, [6])
    for version, segment in enumerate((start, called, aside, went_on, forked)):
        builder.sampled(np.ones(1, np.int32), np.zeros(1, np.float32), np.full(1, 9 - version), segment=segment)
    builder.broken(BreakKind.EDITED, 1, segment=forked)
    found = replace(trace, segments=builder.segments())
    assert [segment.id for segment in found.segments if segment.trained] == [start, called, went_on, forked]
    assert [segment.id for segment in found.main] == [start, forked, empty]
    assert found.breaks == 1
    assert found.version_span() == (5, 9)
    assert replace(trace, segments=[found.segments[aside]]).version_span() == (-1, -1)
