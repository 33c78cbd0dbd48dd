from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.inside.background import Ring
from etude.sandbox.inside.init import Init, OwnerGone
from etude.sandbox.inside.memory import CgroupMemory
from etude.sandbox.inside.processes import Usage


@pytest.mark.parametrize(
    "work", [lambda init: init.serve(), lambda init: init.answer({"ticket": 1, "op": "list", "path": "."}, b"")]
)
def test_an_owner_that_leaves_before_an_answer_is_not_an_error_to_answer_with(
    tmp_path: Path, work: Callable[[Init], None]
) -> None:
    ours, theirs = socket.socketpair()
    line = theirs.fileno(), theirs.fileno()
    message = {"limits": {}, "env": {}, "workdir": str(tmp_path), "single_id": 0, "user": "root"}
    init = Init(line, message, many_ids=False, memory=CgroupMemory(None))
    init.limits |= {"memory_mb": 64, "cpu_seconds": 1}
    ours.close()
    with pytest.raises(OwnerGone):
        work(init)
    theirs.close()


def test_a_box_without_memory_is_not_asked_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing processes takes memory. Just after the kernel has killed a process that held it all, it would kill pid 1
    next."""
    files = {name: tmp_path / name for name in ("events", "stat")}
    files["events"].write_text("oom_kill 0\n")
    files["stat"].write_text("anon 0\n")
    asked: list[str] = []

    class Running:
        mark, cpu_in_time_until = "", time.monotonic() + 60

        def kill(self, limit: str) -> None:
            asked.append(limit)

    def measure() -> list[Usage]:
        asked.append("measure")
        return [Usage("", 0.5, 1 << 20)]

    ours, theirs = socket.socketpair()
    message = {"limits": {"memory_mb": 64, "cpu_seconds": 1}, "env": {}, "workdir": "/", "single_id": 0}
    with ours, theirs, ExitStack() as stack:
        events, stat = (stack.enter_context(file.open("rb")).fileno() for file in files.values())
        line = theirs.fileno(), theirs.fileno()
        init = Init(line, message, many_ids=False, memory=CgroupMemory((events, stat)))
        running = Running()
        init.commands = {1: running}  # type: ignore[dict-item]
        monkeypatch.setattr(init, "measure", measure)
        init.check_usage()
        assert asked == [], "nothing to find"
        files["events"].write_text("oom_kill 1\n")
        init.check_usage()
        assert asked == [], "the killed process may still hold the memory"
        init.check_usage()
        assert asked == ["measure", "memory"]
        files["stat"].write_text(f"anon {60 << 20}\nfile_mapped {5 << 20}\n")
        init.check_usage()
        assert asked[2:] == ["measure"], "too much is mapped, if not by whom it seemed"
        files["stat"].write_text("anon 0\n")
        running.cpu_in_time_until = 0
        init.check_usage()
        assert asked[3:] == ["measure"], "the command may have used up its CPU time"


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
