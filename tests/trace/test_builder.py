from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.trace import UNSAMPLED_VERSION, SegmentKind, Trace, TraceBuilder


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
