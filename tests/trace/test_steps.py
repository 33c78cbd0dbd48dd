"""Steps come back token for token, whatever a kill left of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.test_columns import same_segments

from etude.trace import SegmentKind, StepsFile, TraceBuilder, TraceError, read_steps

Act = Callable[[TraceBuilder], object]
ids = st.lists(st.integers(0, 1 << 20), max_size=6)


def begin(prompt: list[int], kind: SegmentKind) -> Act:
    return lambda builder: builder.start_segment(
        kind, len(builder.segments()) - 1 if builder.segments() else None, prompt
    )


def said(tokens: list[int]) -> Act:
    return lambda builder: builder.extend(tokens)


def sampled(count: int, experts: bool) -> Act:
    def act(builder: TraceBuilder) -> None:
        rows = np.arange((builder.length + count) * 4, dtype=np.uint16).reshape(-1, 2, 2) if experts else None
        tokens = np.arange(count, dtype=np.int32)
        builder.sampled(tokens, -tokens.astype(np.float32) / 7, tokens + 3, experts=rows, experts_from=0)

    return act


acts = st.one_of(
    st.builds(begin, ids, st.sampled_from([SegmentKind.SUMMARY, SegmentKind.REWRITTEN, SegmentKind.FORK])),
    st.builds(said, ids),
    st.builds(sampled, st.integers(0, 5), st.booleans()),
)


@settings(max_examples=40, deadline=None)
@given(prompt=ids, played=st.lists(acts, max_size=8), kept=st.floats(0, 1))
def test_what_was_recorded_is_read_back_as_far_as_whole_frames_go(
    prompt: list[int], played: list[Act], kept: float
) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "x.steps"
        file = StepsFile(path)
        builder, states = TraceBuilder(file), [(file.size, [])]
        for act in (begin(prompt, SegmentKind.START), *played):
            act(builder)
            states.append((file.size, builder.segments()))
        file.note("turn", number=1)
        file.close()
        read, notes = read_steps(path)
        same_segments(read, builder.segments())
        assert notes == [{"what": "turn", "number": 1}]
        cut = int(kept * len(path.read_bytes()))
        path.write_bytes(path.read_bytes()[:cut])
        whole = [segments for size, segments in states if size <= cut]
        same_segments(read_steps(path)[0], whole[-1] if whole else [])


def test_a_file_that_goes_on_begins_a_rewritten_child_of_its_last_segment(tmp_path: Path) -> None:
    path = tmp_path / "x.steps"
    first = StepsFile(path)
    builder = TraceBuilder(first)
    begin([1, 2], SegmentKind.START)(builder)
    sampled(2, experts=False)(builder)
    keep = first.size
    sampled(3, experts=False)(builder)
    first.close()
    with path.open("ab") as torn:
        torn.write(b"\x09\x00")
    second = StepsFile(path, keep=keep)
    again = TraceBuilder(second)
    begin([1, 2, 0, 1, 7], SegmentKind.START)(again)
    sampled(1, experts=False)(again)
    begin([5], SegmentKind.SUMMARY)(again)
    second.close()
    segments = read_steps(path)[0]
    assert [(s.id, s.parent, s.kind.value) for s in segments] == [
        (0, None, "start"),
        (1, 0, "rewritten"),
        (2, 1, "summary"),
    ]
    assert segments[0].sampled.tolist() == [False, False, True, True], "what is behind `keep` is gone"
    assert segments[1].sampled.tolist() == [False] * 5 + [True]
    assert len(read_steps(path, keep=keep)[0]) == 1


def test_other_versions_other_files_and_damage_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.steps"
    file = StepsFile(path)
    begin([1, 2], SegmentKind.START)(TraceBuilder(file))
    file.note("end")
    file.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"etude-steps/1", b"etude-steps/7", 1))
    with pytest.raises(TraceError, match="is etude-steps/7, this version reads etude-steps/1: update"):
        read_steps(path)
    path.write_bytes(b"hello, this is a text\n")
    with pytest.raises(TraceError, match="is not a steps file"):
        read_steps(path)
    path.write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    with pytest.raises(TraceError, match="damaged at byte 14"):
        read_steps(path)
    with pytest.raises(TraceError, match="cannot read"):
        read_steps(tmp_path / "none.steps")
