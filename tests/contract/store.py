"""Contract suite of the weight store on any object store. Each `check_*` takes the location of an empty one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from etude.weights import (
    CorruptVersion,
    Fenced,
    MissingVersion,
    RawTensor,
    Tensors,
    VersionExists,
    WeightsError,
    WeightStore,
    WrongBase,
)
from etude.weights.objects import Objects


def tensor(seed: int, shape: tuple[int, ...] = (64, 33), dtype: str = "bfloat16") -> RawTensor:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    words = (values.view(np.uint32) >> 16).astype(np.uint16)
    return RawTensor(dtype, shape, np.ascontiguousarray(words).view(np.uint8).reshape(-1))


def nudged(old: RawTensor, seed: int, share: float = 0.05) -> RawTensor:
    """A small optimizer step: some elements move by one unit in the last place."""
    words = old.data.view(np.uint16).copy()
    words[np.random.default_rng(seed).random(words.size) < share] += 1
    return RawTensor(old.dtype, old.shape, words.view(np.uint8))


def weights(seed: int = 0) -> dict[str, RawTensor]:
    return {f"layers.{i}.w": tensor(seed + i) for i in range(4)} | {"scale": tensor(seed + 9, ())}


def step(old: Tensors, seed: int) -> dict[str, RawTensor]:
    return {name: nudged(t, seed + i) if i % 2 == 0 else t for i, (name, t) in enumerate(sorted(old.items()))}


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(one[name].equals(other[name]) for name in one)


def chain(store: WeightStore, length: int) -> list[dict[str, RawTensor]]:
    versions = [weights()]
    store.publish(0, versions[0])
    for number in range(1, length):
        versions.append(step(versions[-1], number))
        store.publish(number, versions[-1], base=(number - 1, versions[-2]))
    return versions


def check_publish_and_read(location: str) -> None:
    store = WeightStore(location, anchor_every=3)
    assert store.latest() is None
    assert store.versions() == []
    versions = chain(store, 7)
    assert store.versions() == list(range(7))
    assert store.latest() == 6
    assert [store.manifest(v).kind for v in range(7)] == ["full", "delta", "delta", "full", "delta", "delta", "full"]
    reader = WeightStore(location)
    for number, tensors in enumerate(versions):
        assert same(reader.read(number), tensors)
    for have in range(7):
        assert same(reader.read(5, have=(have, versions[have])), versions[5])
    delta = store.manifest(4)
    assert delta.base == 3
    assert delta.bytes_stored < 0.3 * delta.bytes_full
    assert 0 < delta.share_changed < 0.1
    assert 0 < store.manifest(3).share_changed < 0.1, "an anchor's manifest must say how much its step changed"


def check_unchanged_tensors_are_shared(location: str) -> None:
    store = WeightStore(location)
    versions = chain(store, 2)
    for tensor_ in versions[0].values():
        tensor_.data.flags.writeable = False
    got = store.read(1, have=(0, versions[0]))
    unchanged = [name for name in got if versions[1][name] is versions[0][name]]
    assert unchanged
    assert all(got[name] is versions[0][name] for name in unchanged)


def check_publishing_twice(location: str) -> None:
    store = WeightStore(location)
    versions = chain(store, 2)
    first = store.manifest(1)
    assert store.publish(1, versions[1], base=(0, versions[0])) == first
    assert store.publish(1, versions[1]) == first, "publishing the same content without a base must be accepted"
    with pytest.raises(VersionExists, match="version 1"):
        store.publish(1, versions[0])
    assert same(store.read(1), versions[1])


def check_wrong_bases(location: str) -> None:
    store = WeightStore(location)
    versions = chain(store, 2)
    with pytest.raises(MissingVersion, match="version 9"):
        store.publish(10, versions[1], base=(9, versions[0]))
    with pytest.raises(WrongBase, match="version 0"):
        store.publish(2, versions[1], base=(0, versions[1]))
    with pytest.raises(WrongBase, match="comes earlier"):
        store.publish(2, versions[1], base=(2, versions[1]))
    with pytest.raises(WrongBase, match="version 0"):
        store.read(1, have=(0, versions[1]))
    with pytest.raises(WrongBase, match="missing"):
        store.read(1, have=(0, {}))
    with pytest.raises(MissingVersion, match="version 5"):
        store.read(5)
    assert store.versions() == [0, 1]


def check_a_torn_publish_is_invisible(location: str) -> None:
    store = WeightStore(location)
    versions = chain(store, 2)
    Objects(location).put("v000002/data-of-a-dead-writer.bin", b"half")
    assert store.versions() == [0, 1]
    with pytest.raises(MissingVersion):
        store.read(2)
    store.publish(2, versions[0], base=(1, versions[1]))
    assert same(store.read(2), versions[0])
    assert len(Objects(location).list("v000002")) == 2, "data of the writer that died must be removed"


def check_lost_data_is_named(location: str) -> None:
    store = WeightStore(location)
    chain(store, 3)
    Objects(location).delete_others("v000001", {"v000001/manifest.json"})
    with pytest.raises(CorruptVersion, match="version 1"):
        store.read(2)


def check_a_base_that_was_replaced_is_noticed(location: str) -> None:
    """Whether the tensor of which it has another one is stored as a delta, or as the same."""
    for name in ("layers.0.w", "layers.1.w"):
        store = WeightStore(location)
        old = weights()
        new = {name: nudged(t, 5) if name == "layers.0.w" else t for name, t in old.items()}
        store.publish(0, old)
        store.publish(1, new, base=(0, old))
        store.withdraw(0)
        store.publish(0, old | {name: nudged(old[name], 7)})
        with pytest.raises(CorruptVersion, match=f"version 1: tensor {name}"):
            store.read(1)
        store.withdraw(1)
        store.withdraw(0)


def check_names_may_come_and_go(location: str) -> None:
    store = WeightStore(location)
    old = weights()
    new = {"scale": old["scale"], "layers.0.w": tensor(5, (7, 5)), "head": tensor(6)}
    store.publish(0, old)
    store.publish(1, new, base=(0, old))
    assert same(store.read(1), new)
    store.publish(2, {}, base=(1, new))
    assert store.read(2) == {}


def check_processes_publish_a_version_together(location: str) -> None:
    store = WeightStore(location)
    versions = [weights(), step(weights(), 1)]
    shares = [("layers.0.w", "scale"), ("layers.1.w",), ("layers.2.w", "layers.3.w"), ()]

    def parts(number: int, attempt: str, base: int | None) -> None:
        for rank, names in enumerate(shares):
            mine = [{name: tensors[name] for name in names} for tensors in versions]
            under = None if base is None else (base, mine[base])
            WeightStore(location).publish_part(number, mine[number], part=(rank, 4), attempt=attempt, base=under)

    parts(0, "first", None)
    assert store.versions() == [], "a version is there once it is finished"
    with pytest.raises(MissingVersion, match="part 0 of 4"):
        store.finish(0, parts=4, attempt="other")
    assert store.finish(0, parts=4, attempt="first").kind == "full"
    parts(1, "dead", 0)
    parts(1, "second", 0)
    assert store.finish(1, parts=4, attempt="second", base=0).kind == "delta"
    assert len(Objects(location).list("v000001")) == 5, "what the attempt that died left must be removed"
    for number, tensors in enumerate(versions):
        assert same(store.read(number), tensors)
        some = ("layers.2.w", "layers.0.w")
        assert same(store.read(number, only=some), {name: tensors[name] for name in some})
    some_old = {name: versions[0][name] for name in ("scale",)}
    assert same(store.read(1, have=(0, some_old), only=["scale"]), {"scale": versions[1]["scale"]})
    assert store.publish(1, versions[1]) == store.manifest(1), "it does not matter who published it"
    for rank in (0, 1):
        store.publish_part(2, {"layers.1.w": tensor(0)}, part=(rank, 2), attempt="a")
    with pytest.raises(WeightsError, match=r"layers.1.w is in two parts"):
        store.finish(2, parts=2, attempt="a")
    with pytest.raises(WeightsError, match="a part of several"):
        store.publish_part(2, {}, part=(2, 2), attempt="a")


def check_one_publisher_takes_over_from_another(location: str) -> None:
    one, other = WeightStore(location), WeightStore(location)
    one.claim()
    one.publish(0, weights())
    other.claim()
    for work in (lambda: one.publish(1, weights()), lambda: one.withdraw(0), lambda: one.collect(1)):
        with pytest.raises(Fenced, match="publisher 2 took this store over from 1"):
            work()
    other.publish(1, step(weights(), 1), base=(0, weights()))
    assert other.versions() == [0, 1]
    assert len(Objects(location).list("writers")) == 1
    assert same(one.read(1), step(weights(), 1)), "it may still read"


def check_collection_leaves_what_is_needed(location: str) -> None:
    store = WeightStore(location, anchor_every=3)
    versions = chain(store, 12)
    reader = WeightStore(location)
    reader.announce("one", 4)
    assert [(one.name, one.version) for one in store.followers()] == [("one", 4)]
    assert store.collect(2, pinned=[7]) == [0, 1, 2, 5, 8]
    assert store.versions() == [3, 4, 6, 7, 9, 10, 11], "their anchors are 3, 6 and 9"
    for number in store.versions():
        assert same(reader.read(number), versions[number])
    assert same(reader.read(11, have=(4, versions[4])), versions[11]), "from the anchor: 5 is gone"
    reader.announce("one", 11)
    assert store.collect(1) == [3, 4, 6, 7]
    assert all(path[:7] not in ("v000003", "v000007") for path in Objects(location).list())
    with pytest.raises(MissingVersion, match="version 7"):
        reader.read(7)
    with pytest.raises(WeightsError, match=r"found '\.\./x'"):
        reader.announce("../x", 1)


def check_a_reader_that_was_killed_goes_on(location: str) -> None:
    store = WeightStore(location)
    versions = chain(store, 3)
    with tempfile.TemporaryDirectory() as kept:
        fetched = Fetched(location)
        fetched.until = 2
        with pytest.raises(InterruptedError):
            fetched.store.read(2, resume=Path(kept) / "weights")
        file, *_ = sorted((Path(kept) / "weights").iterdir())
        fetched.until = 100
        file.write_bytes(b"damaged")
        assert same(fetched.store.read(2, resume=Path(kept) / "weights"), versions[2])
        assert len(fetched.ranges) == len(set(fetched.ranges)) + 1, "only what was damaged is fetched again"
        assert list(Path(kept).iterdir()) == [], "what is read is not kept"


class Fetched:
    """A store that counts the ranges it fetches, and dies at one of them."""

    def __init__(self, location: str) -> None:
        self.store, self.ranges, self.until = WeightStore(location), list[tuple[str, int]](), 0
        get_range = self.store._objects.get_range

        def counted(path: str, begin: int, length: int) -> memoryview:
            if len(self.ranges) == self.until:
                raise InterruptedError
            self.ranges.append((path, begin))
            return get_range(path, begin, length)

        self.store._objects.get_range = counted  # type: ignore[method-assign]


CHECKS = (
    check_publish_and_read,
    check_unchanged_tensors_are_shared,
    check_publishing_twice,
    check_wrong_bases,
    check_a_torn_publish_is_invisible,
    check_lost_data_is_named,
    check_a_base_that_was_replaced_is_noticed,
    check_names_may_come_and_go,
    check_processes_publish_a_version_together,
    check_one_publisher_takes_over_from_another,
    check_collection_leaves_what_is_needed,
    check_a_reader_that_was_killed_goes_on,
)
