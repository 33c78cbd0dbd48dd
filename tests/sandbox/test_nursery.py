"""The nursery as a state machine: whatever shells do, each request is answered once, and none is forgotten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.sandbox.inside import kernel, nursery
from etude.sandbox.inside.nursery import Nursery
from etude.sandbox.inside.shell import STANDING, UNMAPPED


class Line:
    def __init__(self, number: int) -> None:
        self.number, self.said = number, b""

    def fileno(self) -> int:
        return self.number

    def recv(self, size: int) -> bytes:
        return self.said


class FakeShell:
    """As nursery sees a Shell; what it does next is the test's to say."""

    made: list[FakeShell] = []
    refuse = False

    def __init__(self, world: object, kind: int, clean: int, home: int, program: bytes) -> None:
        if FakeShell.refuse:
            raise kernel.StepFailed("namespaces", 28)
        number = 10 * (len(FakeShell.made) + 1)
        self.kind, self.line, self.pidfd = kind, Line(number), number + 1
        self.failure = kernel.StepFailed("lost", 0)
        self.at_end: Callable[[], None] | None = None
        self.killed = self.closed = self.stands = False
        FakeShell.made.append(self)

    def map_ids(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Driver:
    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}
        self.nursery = Nursery(None, {1000: b"", 0: b""}, self.watch, self.unwatch)  # type: ignore[arg-type]
        self.asked: list[int] = []
        self.answers: dict[int, FakeShell | kernel.StepFailed] = {}

    def watch(self, number: int, callback: Callable[[], None]) -> None:
        assert number not in self.watched
        self.watched[number] = callback

    def unwatch(self, number: int) -> None:
        self.watched.pop(number, None)

    def ask(self, kind: int) -> None:
        ticket = len(self.asked)
        self.asked.append(kind)

        def then(shell: object) -> None:
            assert ticket not in self.answers
            assert isinstance(shell, FakeShell | kernel.StepFailed)
            if isinstance(shell, FakeShell):
                assert shell.stands
                assert not shell.closed
                assert shell not in self.answers.values()
                assert shell.kind == kind
                shell.at_end = lambda: None
            self.answers[ticket] = shell

        self.nursery.ask(kind, then)

    def speak(self, shell: FakeShell, words: bytes) -> None:
        if not shell.closed and not shell.killed and shell.line.number in self.watched:
            shell.line.said = words
            shell.stands = shell.stands or words == STANDING
            self.watched[shell.line.number]()

    def end(self, shell: FakeShell) -> None:
        if not shell.closed:
            self.watched[shell.pidfd]()

    def finish(self) -> None:
        """All that is under way comes to its end; what has been killed dies."""
        while todo := [s for s in FakeShell.made if not s.closed and (s.killed or not s.stands)]:
            for shell in todo:
                if shell.killed:
                    self.end(shell)
                else:
                    self.speak(shell, STANDING)
        os.close(self.nursery.home)
        os.close(self.nursery._clean)


@pytest.fixture(autouse=True, scope="module")
def no_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nursery, "Shell", FakeShell)
        patch.setattr(kernel, "unshare", lambda flags, step: None)
        yield


FAILED = json.dumps({"step": "overlay", "number": 1}).encode()
EVENTS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([1000, 1000, 0])),
    st.tuples(st.sampled_from(["stand", "unmapped", "fail", "silence", "end"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["idle", "refuse", "allow"]), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_each_request_is_answered_once(events: list[tuple[str, int]]) -> None:
    FakeShell.made, FakeShell.refuse = [], False
    driver = Driver()
    words = {"stand": STANDING, "unmapped": UNMAPPED, "fail": FAILED, "silence": b""}
    for event, value in events:
        if event == "ask":
            driver.ask(value)
        elif event == "idle":
            if driver.nursery.short:
                driver.nursery.make_one()
        elif event in ("refuse", "allow"):
            FakeShell.refuse = event == "refuse"
        elif FakeShell.made:
            shell = FakeShell.made[value % len(FakeShell.made)]
            if event == "end":
                driver.end(shell)
            else:
                driver.speak(shell, words[event])
        coming = [s for s in FakeShell.made if not s.closed and not s.stands]
        assert all(sum(s.kind == kind for s in coming) <= 8 for kind in (1000, 0))
    FakeShell.refuse = False
    driver.finish()
    assert sorted(driver.answers) == list(range(len(driver.asked)))
    watched = {number for s in FakeShell.made if not s.closed for number in (s.pidfd,)}
    assert set(driver.watched) == watched


@given(st.lists(st.sampled_from([1000, 0]), min_size=1, max_size=30))
@settings(deadline=None)
def test_requests_of_a_kind_are_served_in_order(kinds: list[int]) -> None:
    FakeShell.made, FakeShell.refuse = [], False
    driver = Driver()
    for kind in kinds:
        driver.ask(kind)
    driver.finish()
    for kind in (1000, 0):
        served = [ticket for ticket in driver.answers if driver.asked[ticket] == kind]
        assert served == sorted(served)
    assert len(driver.answers) == len(kinds)


def test_as_many_stand_ahead_as_were_missing_of_late() -> None:
    FakeShell.made, FakeShell.refuse = [], False
    driver = Driver()

    def ahead_after(requests: int) -> int:
        for _ in range(requests):
            driver.ask(1000)
        while driver.nursery.short or any(not shell.stands for shell in FakeShell.made):
            if driver.nursery.short:
                driver.nursery.make_one()
            for shell in FakeShell.made:
                if not shell.stands:
                    driver.speak(shell, STANDING)
        return len(FakeShell.made) - len(driver.answers)

    assert ahead_after(1) == 3
    assert ahead_after(20) == ahead_after(20) == 19
    assert ahead_after(100) == 32
    for _ in range(40):
        few = ahead_after(1)
    assert few <= 3
    driver.finish()


def test_little_is_loaded_into_every_box() -> None:
    """Each pid 1 is a copy of the zygote: all that it has loaded is paid for by every box."""
    package = Path(nursery.__file__).parents[1]
    code = f"""
import sys, types
for name, folder in (("etude", {str(package.parent)!r}), ("etude.sandbox", {str(package)!r})):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [folder]
import etude.sandbox.inside.zygote
print(*{{"typing", "dataclasses", "inspect", "pathlib", "shutil", "platform", "hashlib", "asyncio"}} & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
