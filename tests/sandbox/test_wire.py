from __future__ import annotations

import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.inside import wire

headers = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans(), st.none()), max_size=4)


def test_absurd_lengths_are_refused() -> None:
    with pytest.raises(wire.BrokenFrame):
        wire.Unpacker().feed(b"\xff" * 8)


@given(
    st.lists(st.tuples(headers, st.binary(max_size=200_000)), max_size=6),
    st.one_of(st.integers(1, 20), st.integers(1, 300_000)),
)
def test_a_sender_never_waits_and_loses_nothing(frames: list[tuple[wire.Header, bytes]], room: int) -> None:
    """Whatever the peer takes at a time; and frames survive any cutting."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(5)
        sender, unpacker, found = wire.Sender(ours.fileno()), wire.Unpacker(), []
        sent = [sender.put(header, payload) for header, payload in frames]
        assert sent == sorted(sent, reverse=True)  # What waits, everything after it waits too.
        while len(found) < len(frames):
            found += unpacker.feed(theirs.recv(room))
            sender.flush()
        assert sender.flush()
    assert found == frames


def test_a_sender_without_memory_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is not closed for it: that would end a box."""
    ours, theirs = socket.socketpair()

    def refuse(number: int, parts: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with ours, theirs:
        sender = wire.Sender(ours.fileno())
        with monkeypatch.context() as patched:
            patched.setattr(os, "writev", refuse)
            assert not sender.put({"one": 1})
        assert sender.flush()
        assert wire.Unpacker().feed(theirs.recv(1000)) == [({"one": 1}, b"")]
