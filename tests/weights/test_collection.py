"""Whatever is published, followed and deleted in whichever order, every follower reaches the newest version."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.contract.store import same, step, weights

from etude.weights import MissingVersion, RawTensor, WeightsError, WeightStore
from etude.weights.objects import Objects


class Life(RuleBasedStateMachine):
    """A publisher that collects, a follower that reads with what it holds, and pinned versions."""

    @initialize(anchor_every=st.integers(1, 4))
    def begin(self, anchor_every: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = WeightStore(self.folder, anchor_every=anchor_every)
        self.store.claim()
        self.published: dict[int, dict[str, RawTensor]] = {}
        self.have: dict[str, tuple[int, dict[str, RawTensor]]] = {}
        self.pinned: set[int] = set()
        self.publish(1)

    @rule(gap=st.integers(1, 3))
    def publish(self, gap: int) -> None:
        last = max(self.published, default=None)
        tensors = weights() if last is None else step(self.published[last], last)
        number = 0 if last is None else last + gap
        self.store.publish(number, tensors, base=None if last is None else (last, self.published[last]))
        self.published[number] = tensors

    @rule()
    def pin(self) -> None:
        self.pinned.add(max(self.published))

    @rule(keep=st.integers(0, 3))
    def collect(self, keep: int) -> None:
        self.store.collect(keep, self.pinned)

    @rule(name=st.sampled_from(["one", "two"]), publishes=st.booleans())
    def follow(self, name: str, publishes: bool) -> None:
        newest = max(self.store.versions())
        self.store.announce(name, newest)
        if publishes:  # between the announcement and the reading
            self.publish(1)
            self.store.collect(1, self.pinned)
        tensors = self.store.read(newest, have=self.have.get(name))
        assert same(tensors, self.published[newest])
        self.have[name] = (newest, tensors)

    @invariant()
    def what_is_there_can_be_read(self) -> None:
        if hasattr(self, "store"):
            versions = self.store.versions()
            assert max(versions) == max(self.published)
            assert self.pinned <= set(versions)
            assert same(self.store.read(versions[0]), self.published[versions[0]])

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


Life.TestCase.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
TestLife = Life.TestCase


def test_a_version_deleted_while_it_is_read_is_missing_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(tmp_path)
    store.publish(0, weights())
    size = Objects.size

    def deleted(self: Objects, path: str) -> int | None:
        WeightStore(tmp_path).withdraw(0)
        return size(self, path)

    monkeypatch.setattr(Objects, "size", deleted)
    with pytest.raises(MissingVersion, match="version 0"):
        store.read(0)


def test_what_a_follower_announced_must_be_readable_before_anything_is_deleted(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    for number in range(3):
        store.publish(number, step(weights(), number))
    Objects(tmp_path).put("followers/one.json", b"{")
    with pytest.raises(WeightsError, match=r"followers/one\.json is no announcement"):
        store.collect(1)
    assert store.versions() == [0, 1, 2]
