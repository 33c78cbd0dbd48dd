from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.inside.background import Ring
from etude.sandbox.inside.init import Init, OwnerGone
from etude.sandbox.inside.memory import MemoryEvents


@pytest.mark.parametrize(
    "work", [lambda init: init.serve(), lambda init: init.answer({"ticket": 1, "op": "list", "path": "."}, b"")]
)
def test_an_owner_that_leaves_before_an_answer_is_not_an_error_to_answer_with(
    tmp_path: Path, work: Callable[[Init], None]
) -> None:
    ours, theirs = socket.socketpair()
    line = theirs.fileno(), theirs.fileno()
    message = {"limits": {}, "env": {}, "workdir": str(tmp_path), "single_id": 0, "user": "root"}
    init = Init(line, message, many_ids=False, memory=MemoryEvents(None))
    init.limits |= {"memory_mb": 64, "cpu_seconds": 1}
    ours.close()
    with pytest.raises(OwnerGone):
        work(init)
    theirs.close()


@given(st.integers(1, 20), st.lists(st.one_of(st.binary(max_size=30), st.integers(0, 60)), max_size=12))
def test_a_ring_gives_the_last_bytes_under_their_numbers(size: int, steps: list[bytes | int]) -> None:
    """Bytes come, and numbers up to which the owner has them: what is there is a part of the whole, at its place."""
    ring, whole, had = Ring(size), b"", 0
    for step in steps:
        if isinstance(step, bytes):
            ring.append(step)
            whole += step
        else:
            had = max(had, min(step, len(whole)))
            ring.forget(min(step, len(whole)))
        first, data = ring.take()
        assert first + len(data) == ring.end == len(whole)
        assert whole[first:] == data
        assert first == max(had, len(whole) - size) or (first > had and len(data) < size)
