"""Runs that began with etude-weights/1 open: three versions in that format lie in tests/weights/format1."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.contract.store import nudged, same, tensor

from etude.weights import CorruptVersion, HeldVersion, RawTensor, VersionExists, WeightStore, read_held

OLD = Path(__file__).with_name("format1")


def versions() -> list[dict[str, RawTensor]]:
    first = {
        "a.w": tensor(0, (16, 9)),
        "b": tensor(1, ()),
        "ids": RawTensor("int64", (3,), np.arange(3).astype("<i8").view(np.uint8)),
        "e": RawTensor("float32", (0, 2), np.zeros(0, np.uint8)),
        "noise": RawTensor("uint8", (40,), np.random.default_rng(3).integers(0, 256, 40).astype(np.uint8)),
    }
    second = {**first, "a.w": nudged(first["a.w"], 1, 0.2)}
    return [first, second, {**second, "a.w": nudged(second["a.w"], 2, 0.2), "b": nudged(second["b"], 3, 1.0)}]


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    shutil.copytree(OLD, tmp_path / "weights")
    return WeightStore(tmp_path / "weights")


def test_old_versions_are_read(store: WeightStore) -> None:
    expected = versions()
    for number, tensors in enumerate(expected):
        assert same(store.read(number), tensors)
        assert same(store.read(2, have=(number, tensors)), expected[2])
    assert store.read(2, only=["b"]).keys() == {"b"}


def test_a_run_goes_on_from_them(store: WeightStore) -> None:
    old, held = versions()[2], HeldVersion(store.location)
    assert store.publish(2, old, held=held) == store.manifest(2)
    with pytest.raises(VersionExists):
        store.publish(2, versions()[0])
    found = read_held(store.location, store.manifest(2))
    assert found is not None
    assert same(found, old)
    new = {**old, "a.w": nudged(old["a.w"], 5, 0.2)}
    manifest = store.publish(3, new, base=held.base, held=held)
    assert (manifest.kind, manifest.depth) == ("full", 0), "a delta never stands on the old format"
    assert 0 < manifest.share_changed < 0.2
    assert store.publish(4, old, base=held.base).kind == "delta"
    assert same(store.read(4, have=(2, old)), old)
    held.drop()


def test_damage_is_found(store: WeightStore) -> None:
    for path in sorted(Path(store.location).rglob("*.*")):
        intact = path.read_bytes()
        for place in range(0, len(intact), 7):
            path.write_bytes(intact[:place] + bytes([intact[place] ^ 1 << place % 8]) + intact[place + 1 :])
            with pytest.raises(CorruptVersion, match=f"version {int(path.parent.name[1:])}"):
                store.read(2)
        path.write_bytes(intact)
