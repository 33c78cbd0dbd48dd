from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from etude.trace import (
    Break,
    BreakKind,
    Segment,
    SegmentKind,
    StopCause,
    ToolEvent,
    Trace,
    TraceError,
    TraceUsage,
    from_line,
    to_line,
)
from etude.trace.columns import from_batch, to_table

texts = st.text(max_size=10)
small = st.integers(-(1 << 31), (1 << 31) - 1)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    size = draw(st.integers(0, 6))
    layers, top_k = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    highest = draw(st.sampled_from([7, 254, 255, 0xFFFE, 0xFFFF]))
    numbers = st.one_of(st.integers(0, highest), st.just(0xFFFF))
    return Segment(
        id=draw(small),
        parent=draw(st.none() | small),
        kind=draw(st.sampled_from(SegmentKind)),
        tokens=draw(hnp.arrays(np.int32, size)),
        sampled=draw(hnp.arrays(np.bool_, size)),
        logprobs=draw(hnp.arrays(np.float32, size, elements=st.floats(width=32))),
        versions=draw(hnp.arrays(np.int32, size)),
        experts=draw(st.none() | hnp.arrays(np.uint16, (size, layers, top_k), elements=numbers)),
        breaks=tuple(draw(st.lists(st.builds(Break, st.sampled_from(BreakKind), small, texts), max_size=2))),
    )


tools = st.builds(
    ToolEvent, small, small, texts, texts, st.booleans(), st.booleans(), st.floats(0, 9), texts, st.integers(0, 99)
)
traces = st.builds(
    Trace,
    id=texts,
    task=texts,
    split=st.sampled_from(["train", "dev"]),
    group=texts,
    member=small,
    policy=texts,
    seed=st.integers(-(1 << 63), (1 << 63) - 1),
    segments=st.lists(segments(), max_size=3),
    tools=st.lists(tools, max_size=3),
    usage=st.builds(TraceUsage, st.integers(0, 9), st.integers(0, 9)),
    stop=st.sampled_from(StopCause),
    error=texts,
    started=st.floats(0, 1e10),
    timing=st.dictionaries(texts, st.floats(0, 9), max_size=2),
    diff=texts,
    messages=st.lists(st.fixed_dictionaries({"role": texts, "content": st.none() | texts}), max_size=2),
)


def assert_equal(one: Trace, other: Trace) -> None:
    for field in fields(Trace):
        if field.name != "segments":
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    same_segments(one.segments, other.segments)


def same_segments(one: list[Segment], other: list[Segment]) -> None:
    assert [(s.id, s.parent, s.kind, s.breaks) for s in one] == [(s.id, s.parent, s.kind, s.breaks) for s in other]
    for a, b in zip(one, other, strict=True):
        for name in ("tokens", "sampled", "logprobs", "versions", "experts"):
            first, second = getattr(a, name), getattr(b, name)
            assert (first is None) == (second is None), name
            if first is not None:
                assert first.dtype == second.dtype
                assert first.shape == second.shape
                assert first.tobytes() == second.tobytes(), name


@settings(max_examples=50, deadline=None)
@given(written=st.lists(traces, max_size=4))
def test_every_field_comes_back(written: list[Trace]) -> None:
    read = [trace for batch in to_table(written).to_batches(max_chunksize=2) for trace in from_batch(batch)]
    assert len(read) == len(written)
    for one, other in zip(written, read, strict=True):
        assert_equal(one, other)


def test_arrays_are_the_callers_own(trace: Trace) -> None:
    (batch,) = to_table([trace]).to_batches()
    (read,) = from_batch(batch)
    read.segments[0].tokens[0] = 9
    assert next(from_batch(batch)).segments[0].tokens[0] == 1


def test_lone_surrogates_do_not_lose_a_trace(trace: Trace) -> None:
    trace.diff = "a\ud800"
    (batch,) = to_table([trace]).to_batches()
    assert next(from_batch(batch)).diff == "a?"


@settings(max_examples=30, deadline=None)
@given(traces)
def test_lines_hold_every_field(trace: Trace) -> None:
    if any(not np.isfinite(segment.logprobs).all() for segment in trace.segments):
        with pytest.raises(TraceError, match="JSON cannot represent"):
            to_line(trace)
        return
    assert_equal(from_line(to_line(trace)), trace)


def test_lines_of_the_first_version_are_read(trace: Trace) -> None:
    old = json.loads(to_line(trace)) | {"format": "etude-trace-lines/1"}
    for segment in old["segments"]:
        del segment["breaks"]
    assert_equal(from_line(json.dumps(old)), trace)
