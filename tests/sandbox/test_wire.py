from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.inside import wire

headers = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans(), st.none()), max_size=4)


@given(st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=5), st.data())
def test_frames_survive_any_cutting(frames: list[tuple[wire.Header, bytes]], data: st.DataObject) -> None:
    stream = b"".join(wire.pack(header, payload) for header, payload in frames)
    unpacker, found = wire.Unpacker(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += unpacker.feed(stream[:size])
        stream = stream[size:]
    assert found == frames


def test_absurd_lengths_are_refused() -> None:
    with pytest.raises(wire.BrokenFrame):
        wire.Unpacker().feed(b"\xff" * 8)
