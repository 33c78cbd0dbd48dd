"""Damage: no flipped byte and no killed writer ever yields a wrong tensor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.store import chain, nudged, same, step, tensor, weights

from etude.weights import (
    CorruptVersion,
    HeldVersion,
    RawTensor,
    StoreFailed,
    UnknownFormat,
    WeightsError,
    WeightStore,
    WrongBase,
)
from etude.weights import manifest as manifest_module
from etude.weights.manifest import Manifest, dump, load

ROOT = Path(__file__).resolve().parents[2]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    chain(WeightStore(folder), 3)
    return folder


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_bit_is_found(published: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(published)))
    place = data.draw(st.integers(0, path.stat().st_size - 1))
    flip = 1 << data.draw(st.integers(0, 7))
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[place] ^= flip
    path.write_bytes(damaged)
    try:
        with pytest.raises(CorruptVersion, match=f"version {int(path.parent.name[1:])}"):
            WeightStore(published).read(2)
    finally:
        path.write_bytes(intact)


@pytest.mark.slow
def test_every_bit_of_a_small_store_counts(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    old = {"a": tensor(0, (9, 7)), "b": tensor(1, (3,))}
    new = {"a": nudged(old["a"], 0, share=0.3), "b": old["b"]}
    store.publish(0, old)
    store.publish(1, new, base=(0, old))
    for path in files(tmp_path):
        intact = path.read_bytes()
        for bit in range(8 * len(intact)):
            damaged = bytearray(intact)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(CorruptVersion):
                store.read(1)
        path.write_bytes(intact)
    assert same(store.read(1), new)


def test_every_truncation_is_found(published: Path) -> None:
    for path in files(published):
        intact = path.read_bytes()
        for keep in (0, 1, len(intact) // 2, len(intact) - 1):
            path.write_bytes(intact[:keep])
            with pytest.raises(CorruptVersion):
                WeightStore(published).read(2)
        path.write_bytes(intact + b"\n")
        with pytest.raises(CorruptVersion):
            WeightStore(published).read(2)
        path.write_bytes(intact)
    WeightStore(published).read(2)


def test_versions_cannot_be_swapped(published: Path) -> None:
    one, two = (published / f"v00000{v}" / "manifest.json" for v in (1, 2))
    first, second = one.read_bytes(), two.read_bytes()
    two.write_bytes(first)
    with pytest.raises(CorruptVersion, match="says version 1"):
        WeightStore(published).read(2)
    two.write_bytes(second)


def test_a_manifest_of_the_future_is_named(published: Path) -> None:
    manifest = WeightStore(published).manifest(1)
    assert isinstance(manifest, Manifest)
    future = dump(manifest.model_copy(update={"format": "etude-weights/9"}))
    with pytest.raises(UnknownFormat, match="etude-weights/9"):
        load(future, 1)


def test_odd_use_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="anchor_every"):
        WeightStore(tmp_path, anchor_every=0)
    with pytest.raises(WeightsError, match="count from 0"):
        WeightStore(tmp_path).read(-1)
    with pytest.raises(WeightsError, match="expected a folder"):
        WeightStore("ftp://somewhere/else")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="could not open"):
        WeightStore(tmp_path / "file")


def test_a_long_line_of_versions_reads_from_the_nearest_anchor(tmp_path: Path) -> None:
    store = WeightStore(tmp_path, anchor_every=4)
    versions = chain(store, 10)
    for gone in range(8):
        for path in files(tmp_path / f"v{gone:06d}"):
            path.unlink()
    assert same(store.read(9), versions[9])


WRITER = """
import sys
import numpy as np
from etude.weights import RawTensor, WeightStore
store = WeightStore(sys.argv[1])
data = np.random.default_rng(1).integers(0, 256, 40_000_000, np.uint8)
base = {"w": RawTensor("uint8", data.shape, data)}
sys.stdout.write("go\\n"); sys.stdout.flush()
store.publish(7, base)
"""


@pytest.mark.parametrize("moment", [0.0, 0.03, 0.06, 0.1, 0.2])
def test_a_writer_killed_while_it_publishes_leaves_nothing_visible(tmp_path: Path, moment: float) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert writer.stdout is not None
    writer.stdout.readline()
    time.sleep(moment)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    data = np.random.default_rng(1).integers(0, 256, 40_000_000, np.uint8)
    tensors = {"w": RawTensor("uint8", data.shape, data)}
    store = WeightStore(tmp_path)
    assert store.latest() in (None, 7)
    manifest = store.publish(7, tensors)
    assert same(store.read(7), tensors)
    assert isinstance(manifest, Manifest)
    names = {"manifest.json", manifest.parts[0].data}
    assert {path.name for path in files(tmp_path)} == names, "what the dead writer left is gone"


def test_the_shares_are_counted_right(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    old = {"a": tensor(0, (100,)), "b": tensor(1, (300,))}
    new = {"a": nudged(old["a"], 0, share=1.0), "b": old["b"]}
    whole = store.publish(0, old)
    assert (whole.kind, whole.share_changed, whole.bytes_full) == ("full", 1.0, 800)
    part = store.publish(1, new, base=(0, old))
    assert (part.kind, part.share_changed, part.bytes_full) == ("delta", 0.25, 800)
    assert [entry.chunks[0].codec for entry in part.tensors] == ["numbers", "same"]  # type: ignore[union-attr]
    assert part.bytes_stored == sum(path.stat().st_size for path in files(tmp_path / "v000001") if "data" in path.name)


def test_publishing_and_reading_take_memory_for_a_tensor_or_two(tmp_path: Path) -> None:
    """Tensors are made as they are asked for, the base is one that is held, and `read` adds to the result a few MiB."""
    size, number = 1 << 20, 10

    class Made(dict[str, RawTensor]):
        def __getitem__(self, name: str) -> RawTensor:
            made = tensor(int(name), (size // 2,))
            return nudged(made, self.steps) if self.steps else made

        steps = 0

    tensors, held = Made.fromkeys(f"{n:02d}" for n in range(number)), HeldVersion(str(tmp_path / "store"))
    store = WeightStore(tmp_path / "store")
    store.publish(0, tensors, held=held)
    tensors.steps = 1
    tracemalloc.start()
    manifest = store.publish(1, tensors, base=held.base, held=held)
    assert manifest.kind == "delta"
    made = peak(lambda: tensor(0, (size // 2,)))
    tensors.steps = 2
    assert peak(lambda: store.publish(2, tensors, base=held.base, held=held)) < made + 4 * size
    assert peak(lambda: store.read(1)) < (number + 5) * size
    tracemalloc.stop()
    held.drop()


def peak(work: Callable[[], object]) -> int:
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    work()
    return tracemalloc.get_traced_memory()[1] - before


def test_a_base_changed_in_place_is_noticed_unless_nobody_can_change_it(tmp_path: Path) -> None:
    held = HeldVersion(str(tmp_path / "store"))
    store = WeightStore(tmp_path / "store")
    old = weights()
    store.publish(0, old, held=held)
    assert held.base is not None
    with pytest.raises(ValueError, match="read-only"):
        held.base[1]["scale"].data[0] = 1
    new = step(old, 1)
    old["scale"].data[0] ^= 1
    with pytest.raises(WrongBase, match="tensor scale"):
        store.publish(1, new, base=(0, old))
    store.publish(1, new, base=held.base, held=held)
    assert same(store.read(1), new)
    assert held.base[0] == 1
    assert same(held.base[1], new)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_store_the_same_bytes(tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "CHUNK_BYTES", 256)
    chain(WeightStore(tmp_path / "one"), 4)
    chain(WeightStore(tmp_path / "some", threads=threads), 4)
    stored = [
        [path.read_bytes() for path in sorted((tmp_path / name).rglob("data-*"), key=lambda path: path.parent)]
        for name in ("one", "some")
    ]
    assert stored[0] == stored[1]
