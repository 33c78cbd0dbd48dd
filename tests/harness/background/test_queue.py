"""Tickets: in order, never more at once than allowed, and the dead hold up nobody."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from etude.harness.background import LOCK, Queue, is_held, lock_holder, signal_holder, take_lock, wait_for_lock
from etude.harness.sessions import SessionError


def test_a_question_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    lock = take_lock(path)
    assert lock is not None
    assert is_held(path)
    assert take_lock(path) is None
    os.close(lock)
    assert not is_held(path)
    again = take_lock(path)
    assert again is not None
    os.close(again)


def test_a_lock_is_handed_on_and_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = take_lock(path)
    assert lock is not None
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(lock,)
    )
    os.close(lock)
    assert is_held(path)
    child.kill()
    child.communicate()
    assert not is_held(path)


def test_only_who_holds_the_lock_and_signed_is_signalled(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = take_lock(path)
    assert lock is not None
    assert not signal_holder(path, signal.SIGKILL), "nobody signed"
    # A line of a process that is gone, whose number another one has: this one, which would not survive it.
    os.pwrite(lock, f"{os.getpid()} 1".encode(), 0)
    assert not signal_holder(path, signal.SIGKILL)
    signs = "import sys; from etude.harness.background import sign_lock; sign_lock(int(sys.argv[1]))"
    code = f"{signs}; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(lock,)
    )
    os.close(lock)
    assert child.stdout is not None
    assert child.stdout.readline() == b"\n"
    assert lock_holder(path) == child.pid
    assert signal_holder(path, signal.SIGTERM)
    child.communicate()
    assert child.returncode == -signal.SIGTERM
    assert not signal_holder(path, signal.SIGTERM)


def test_who_waits_is_told_for_whom(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        wait_for_lock(path, seconds=1, whom="nobody"),
        pytest.raises(SessionError, match="waited 0 s for a friend"),
        wait_for_lock(path, seconds=0, whom="a friend"),
    ):
        pass
    with wait_for_lock(path, seconds=0, whom="nobody"):
        pass


def test_many_draw_at_once_and_all_get_places_of_their_own(tmp_path: Path) -> None:
    names = [f"agent-{n}" for n in range(8)]
    locks = []
    for name in names:
        (tmp_path / name).mkdir()
        locks.append(take_lock(tmp_path / name / LOCK))
    threads = [threading.Thread(target=Queue(tmp_path).draw, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Queue(tmp_path).before(name) for name in names) == list(range(8))
    for lock in locks:
        assert lock is not None
        os.close(lock)


class Line(RuleBasedStateMachine):
    """Agents come, begin, leave, die and come again; a list says who should be where."""

    AT_ONCE = 2

    def __init__(self) -> None:
        super().__init__()
        self.locks: dict[str, int] = {}
        self.order: list[str] = []
        self.running: set[str] = set()

    @initialize()
    def open(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.queue = Queue(self.place)

    @rule(name=st.sampled_from("abcdef"))
    def come(self, name: str) -> None:
        if name in self.locks:
            return
        (self.place / name).mkdir(exist_ok=True)
        lock = take_lock(self.place / name / LOCK)
        assert lock is not None
        self.locks[name] = lock
        self.queue.draw(name)
        self.order.append(name)

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), in_order=st.booleans())
    def go(self, data: st.DataObject, in_order: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.locks)))
        if in_order:
            self.queue.leave(name)
        os.close(self.locks.pop(name))
        self.order.remove(name)
        self.running.discard(name)

    @invariant()
    def the_first_ones_run(self) -> None:
        if not hasattr(self, "queue"):
            return
        for place, name in enumerate(self.order):
            assert self.queue.before(name) == place
            if place < self.AT_ONCE:
                self.running.add(name)
        assert len(self.running) <= self.AT_ONCE

    def teardown(self) -> None:
        for lock in self.locks.values():
            os.close(lock)
        if hasattr(self, "place"):
            shutil.rmtree(self.place)


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=12, stateful_step_count=15)
