"""The end of a command's tree: nobody is left, also where a process was told to stop in the middle of a fork."""

from __future__ import annotations

import os
import signal

import pytest

from etude.sandbox.inside import processes
from etude.sandbox.modes import runner

MARK = "uts:[1]"


class Forker:
    """A process 5 that is killed when its child 6 has just been made, as each of its descendants is, three times."""

    def __init__(self) -> None:
        self.living, self.ended = {5}, list[int]()

    def send(self, pid: int, number: signal.Signals) -> None:
        if number == signal.SIGKILL and pid in self.living:
            self.living.remove(pid)
            self.ended.append(pid)
            if pid < 8:
                self.living.add(pid + 1)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        if not self.living:
            raise ChildProcessError
        return 0, 0


@pytest.fixture
def forker() -> Forker:
    return Forker()


def test_a_child_made_at_the_last_moment_ends_with_its_command(forker: Forker, monkeypatch: pytest.MonkeyPatch) -> None:
    forker.living |= {20, 30}
    marks = {20: MARK, 30: "uts:[2]"}
    monkeypatch.setattr(processes, "_others", lambda: sorted(forker.living))
    monkeypatch.setattr(processes, "mark_of", lambda pid: marks.get(pid, MARK) if pid in forker.living else "")
    monkeypatch.setattr(processes, "_send", forker.send)
    monkeypatch.setattr(processes, "_reaped", lambda pid: True)
    processes.kill_marked(MARK, commands={20})
    assert (forker.ended, forker.living) == ([5, 6, 7, 8], {20, 30})


def test_so_it_does_where_nothing_but_a_runner_holds_it(forker: Forker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "descendants", lambda _: sorted(forker.living))
    monkeypatch.setattr(runner, "_send", forker.send)
    monkeypatch.setattr(os, "waitpid", forker.waitpid)
    runner._kill_all()
    assert forker.ended == [5, 6, 7, 8]
