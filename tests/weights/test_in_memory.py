"""The newest version goes from process to process through memory, and what is no longer there is never believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.contract.store import chain, same

from etude.weights import HeldVersion, VersionExists, WeightStore, cache_of, read_held

HOLDER = """
import sys
from etude.weights import HeldVersion, WeightStore
store, held = WeightStore(sys.argv[1]), HeldVersion(sys.argv[1])
store.publish(2, store.read(2), held=held)
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_reads_what_one_holds_until_that_ends(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights")
    chain(store, 3)
    manifest, expected = store.manifest(2), store.read(2)
    assert read_held(store.location, manifest) is None
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, store.location], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for data in tmp_path.rglob("data-*"):
            data.unlink()  # nothing of it is read from the disk
        found = read_held(store.location, manifest)
        assert found is not None
        assert same(found, expected)
        assert read_held(store.location, store.manifest(1)) is None
        holder.communicate()
    assert same(found, expected), "a reader's copy outlives the holder"
    assert read_held(store.location, manifest) is None


def test_bytes_that_are_not_the_versions_are_not_taken(tmp_path: Path) -> None:
    store, place = WeightStore(tmp_path / "weights"), tmp_path / "weights-in-memory.json"
    held = HeldVersion(store.location)
    chain(store, 2)
    store.publish(1, store.read(1), held=held)
    assert read_held(store.location, store.manifest(1)) is not None
    said = json.loads(place.read_text())
    size = os.fstat(said["descriptor"]).st_size
    other = tmp_path / "other"
    other.write_bytes(np.zeros(size, np.uint8).tobytes())
    with other.open("rb") as file:
        for wrong in ({"descriptor": file.fileno()}, {"process": -1}, {"descriptor": "../../etc"}, {"version": 0}):
            place.write_text(json.dumps(said | wrong))
            assert read_held(store.location, store.manifest(1)) is None
    place.write_text("[")
    assert read_held(store.location, store.manifest(1)) is None
    held.drop()


def test_a_store_elsewhere_is_held_by_its_publisher_alone(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights")
    chain(store, 2)
    held = HeldVersion("s3://bucket/run")
    store.publish(1, store.read(1), held=held)
    assert held.base is not None
    assert same(held.base[1], store.read(1))
    assert read_held("s3://bucket/run", store.manifest(1)) is None
    held.drop()


def test_only_what_comes_from_elsewhere_is_kept_while_it_is_fetched() -> None:
    assert cache_of("/some/folder") is None
    assert cache_of("file:///some/folder") is None
    places = {cache_of("s3://bucket/run"), cache_of("s3://bucket/other")}
    assert len(places - {None}) == 2


def test_what_is_held_while_a_publish_fails_stays(tmp_path: Path) -> None:
    store, held = WeightStore(tmp_path / "weights"), HeldVersion(str(tmp_path / "weights"))
    chain(store, 2)
    store.publish(1, store.read(1), held=held)
    with pytest.raises(VersionExists):
        store.publish(0, store.read(1), held=held)
    assert held.base is not None
    assert held.base[0] == 1
    assert read_held(store.location, store.manifest(1)) is not None
    held.drop()
