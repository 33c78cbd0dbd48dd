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

from etude.trace import BreakKind, SegmentKind, StepsFile, TraceBuilder, TraceError, read_steps

Act = Callable[[TraceBuilder], object]
ids = st.lists(st.integers(0, 1 << 20), max_size=6)


def begin(prompt: list[int], kind: SegmentKind) -> Act:
    return lambda builder: builder.start_segment(
        kind, len(builder.segments()) - 1 if builder.segments() else None, prompt
    )


def said(tokens: list[int], pick: int = 0) -> Act:
    return lambda builder: builder.extend(tokens, segment=picked(builder, pick))


def sampled(count: int, experts: bool, pick: int = 0) -> Act:
    def act(builder: TraceBuilder) -> None:
        segment = picked(builder, pick)
        length = len(builder.segments()[segment].tokens)
        rows = np.arange((length + count) * 4, dtype=np.uint16).reshape(-1, 2, 2) if experts else None
        tokens = np.arange(count, dtype=np.int32)
        builder.sampled(
            tokens, -tokens.astype(np.float32) / 7, tokens + 3, experts=rows, experts_from=0, segment=segment
        )

    return act


def broken(kind: BreakKind, detail: str, pick: int) -> Act:
    return lambda builder: builder.broken(kind, 0, detail, segment=picked(builder, pick))


def picked(builder: TraceBuilder, pick: int) -> int:
    """The segment that was started `pick` segments before the last one."""
    return len(builder.segments()) - 1 - pick % len(builder.segments())


acts = st.one_of(
    st.builds(begin, ids, st.sampled_from([kind for kind in SegmentKind if kind is not SegmentKind.START])),
    st.builds(said, ids, st.integers(0, 3)),
    st.builds(sampled, st.integers(0, 5), st.booleans(), st.integers(0, 3)),
    st.builds(broken, st.sampled_from(BreakKind), st.text(max_size=5), st.integers(0, 3)),
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
    said([9], pick=1)(again)
    second.close()
    segments = read_steps(path)[0]
    assert [(s.id, s.parent, s.kind.value) for s in segments] == [
        (0, None, "start"),
        (1, 0, "rewritten"),
        (2, 1, "summary"),
    ]
    assert segments[0].sampled.tolist() == [False, False, True, True], "what is behind `keep` is gone"
    assert segments[1].sampled.tolist() == [False] * 5 + [True, False]
    assert segments[2].tokens.tolist() == [5]
    assert len(read_steps(path, keep=keep)[0]) == 1


def test_other_versions_other_files_and_damage_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.steps"
    file = StepsFile(path)
    begin([1, 2], SegmentKind.START)(TraceBuilder(file))
    file.note("end")
    file.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"etude-steps/2", b"etude-steps/7", 1))
    with pytest.raises(TraceError, match="is etude-steps/7, this version reads etude-steps/2 and older: update"):
        read_steps(path)
    path.write_bytes(b"hello, this is a text\n")
    with pytest.raises(TraceError, match="is not a steps file"):
        read_steps(path)
    path.write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    with pytest.raises(TraceError, match="damaged at byte 14"):
        read_steps(path)
    with pytest.raises(TraceError, match="cannot read"):
        read_steps(tmp_path / "none.steps")


def test_a_file_of_the_first_version_is_read_and_goes_on_as_one_of_the_second(tmp_path: Path) -> None:
    path = tmp_path / "x.steps"
    file = StepsFile(path)
    begin([1, 2], SegmentKind.START)(TraceBuilder(file))
    file.close()
    path.write_bytes(path.read_bytes().replace(b"etude-steps/2", b"etude-steps/1", 1))
    assert read_steps(path)[0][0].tokens.tolist() == [1, 2]
    file = StepsFile(path)
    builder = TraceBuilder(file)
    begin([1, 2, 3], SegmentKind.START)(builder)
    begin([4], SegmentKind.AGENT)(builder)
    said([5], pick=1)(builder)
    file.close()
    assert path.read_bytes().startswith(b"etude-steps/2\n"), "older versions refuse what they would misread"
    assert [segment.tokens.tolist() for segment in read_steps(path)[0]] == [[1, 2], [1, 2, 3, 5], [4]]
