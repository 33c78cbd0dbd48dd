"""BoxSpawner as a state machine: whatever boxes do, each request is answered once, and none is forgotten."""

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

from etude.sandbox.inside import box_spawner, kernel
from etude.sandbox.inside.box_ids import BoxIds
from etude.sandbox.inside.box_spawner import BoxSpawner
from etude.sandbox.inside.prepared_box import STANDING, UNMAPPED, Kind


class Line:
    def __init__(self, number: int) -> None:
        self.number, self.said = number, b""

    def fileno(self) -> int:
        return self.number

    def recv(self, size: int) -> bytes:
        return self.said


class FakeBox:
    """A PreparedBox as BoxSpawner sees it. The test decides what it does next."""

    made: list[FakeBox] = []
    refuse = False

    def __init__(
        self, settings: object, kind: Kind, ids: BoxIds, template: int, own_namespace: int, program: bytes
    ) -> None:
        if FakeBox.refuse:
            raise kernel.StepFailed("namespaces", 28)
        number = 10 * (len(FakeBox.made) + 1)
        self.kind, self.ids, self.control, self.pidfd = kind, ids, Line(number), number + 1
        self.failure = kernel.StepFailed("lost", 0)
        self.at_end: Callable[[], None] | None = None
        self.killed = self.closed = self.stands = False
        FakeBox.made.append(self)

    def map_ids(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = True

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class FakePool:
    """Counts the ids that are in use."""

    def __init__(self) -> None:
        self.used: set[BoxIds] = set()

    def take(self) -> BoxIds:
        ids = BoxIds()
        self.used.add(ids)
        return ids

    def give_back(self, ids: BoxIds) -> None:
        self.used.remove(ids)


class Driver:
    def __init__(self) -> None:
        self.pool = FakePool()
        self.watched: dict[int, Callable[[], None]] = {}
        programs = {1000: b"", 0: b""}
        self.spawner = BoxSpawner(None, programs, self.pool, self.watch, self.unwatch)  # type: ignore[arg-type]
        self.asked: list[Kind] = []
        self.answers: dict[int, FakeBox | kernel.StepFailed] = {}

    def watch(self, number: int, callback: Callable[[], None]) -> None:
        assert number not in self.watched
        self.watched[number] = callback

    def unwatch(self, number: int) -> None:
        self.watched.pop(number, None)

    def ask(self, kind: Kind) -> None:
        ticket = len(self.asked)
        self.asked.append(kind)

        def then(box: object) -> None:
            assert ticket not in self.answers
            assert isinstance(box, FakeBox | kernel.StepFailed)
            if isinstance(box, FakeBox):
                assert box.stands
                assert not box.closed
                assert box not in self.answers.values()
                assert box.kind == kind
                box.at_end = lambda: None
            self.answers[ticket] = box

        self.spawner.request(kind, then)

    def speak(self, box: FakeBox, words: bytes) -> None:
        if not box.closed and not box.killed and box.control.number in self.watched:
            box.control.said = words
            box.stands = box.stands or words == STANDING
            self.watched[box.control.number]()

    def end(self, box: FakeBox) -> None:
        if not box.closed:
            self.watched[box.pidfd]()

    def finish(self) -> None:
        """All that is under way comes to its end; what has been killed dies."""
        while todo := [s for s in FakeBox.made if not s.closed and (s.killed or not s.stands)]:
            for box in todo:
                if box.killed:
                    self.end(box)
                else:
                    self.speak(box, STANDING)
        os.close(self.spawner.own_namespace)
        os.close(self.spawner._template_namespace)


@pytest.fixture(autouse=True, scope="module")
def no_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_spawner, "PreparedBox", FakeBox)
        patch.setattr(kernel, "unshare", lambda flags, step: None)
        yield


KINDS: list[Kind] = [(1000, 64), (0, 64), (1000, 2), (1000, 3), (1000, 4), (1000, 5)]
FAILED = json.dumps({"step": "overlay", "number": 1}).encode()
EVENTS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([0, 0, 1, 2, 3, 4, 5])),
    st.tuples(st.sampled_from(["stand", "unmapped", "fail", "silence", "end"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["idle", "refuse", "allow"]), st.just(0)),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_each_request_is_answered_once(events: list[tuple[str, int]]) -> None:
    FakeBox.made, FakeBox.refuse = [], False
    driver = Driver()
    words = {"stand": STANDING, "unmapped": UNMAPPED, "fail": FAILED, "silence": b""}
    for event, value in events:
        if event == "ask":
            driver.ask(KINDS[value])
        elif event == "idle":
            if driver.spawner.needs_spare:
                driver.spawner.make_spare()
        elif event in ("refuse", "allow"):
            FakeBox.refuse = event == "refuse"
        elif FakeBox.made:
            box = FakeBox.made[value % len(FakeBox.made)]
            if event == "end":
                driver.end(box)
            else:
                driver.speak(box, words[event])
        coming = [s for s in FakeBox.made if not s.closed and not s.stands]
        assert all(sum(s.kind == kind for s in coming) <= 8 for kind in KINDS)
        left = {s.kind for s in FakeBox.made if s.stands and not s.killed and not s.closed and not s.at_end}
        assert len(left) <= 4, "spares of kinds that nobody asks for any more are ended"
    FakeBox.refuse = False
    driver.finish()
    assert sorted(driver.answers) == list(range(len(driver.asked)))
    for kind in KINDS:
        served = [ticket for ticket in driver.answers if driver.asked[ticket] == kind]
        assert served == sorted(served), "requests of a kind are served in order"
    assert driver.pool.used == {box.ids for box in FakeBox.made if not box.closed}
    assert set(driver.watched) == {box.pidfd for box in FakeBox.made if not box.closed}


def test_as_many_stand_ahead_as_were_missing_of_late() -> None:
    FakeBox.made, FakeBox.refuse = [], False
    driver = Driver()

    def ahead_after(requests: int) -> int:
        for _ in range(requests):
            driver.ask(KINDS[0])
        while driver.spawner.needs_spare or any(not box.stands for box in FakeBox.made):
            if driver.spawner.needs_spare:
                driver.spawner.make_spare()
            for box in FakeBox.made:
                if not box.stands:
                    driver.speak(box, STANDING)
        return len(FakeBox.made) - len(driver.answers)

    assert ahead_after(1) == 3
    assert ahead_after(20) == ahead_after(20) == 19
    assert ahead_after(100) == 32
    for _ in range(40):
        few = ahead_after(1)
    assert few <= 3
    driver.finish()


def test_little_is_loaded_into_every_box() -> None:
    """Each pid 1 is a copy of the zygote: all that it has loaded is paid for by every box."""
    package = Path(box_spawner.__file__).parents[1]
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
