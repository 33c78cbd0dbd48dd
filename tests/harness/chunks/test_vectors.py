"""Vectors on disk: what was written comes back, what is torn does not, two writers lose nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.chunks.vectors import VectorStore, default_folder, key_of

KEYS = [key_of(str(number)) for number in range(5)]
VECTORS = np.array([[1, 0.5, -0.25], [0, 1, 0], [3, 2, 1], [0.1, 0.2, 0.3], [0, 0, 0]], np.float32)
KEPT = VECTORS.astype(np.float16).astype(np.float32)


def test_what_was_added_is_there_for_the_next_one(tmp_path: Path) -> None:
    store = VectorStore("model", tmp_path)
    store.add(KEYS[:3], VECTORS[:3])
    again = VectorStore("model", tmp_path)
    for where in (store, again):
        assert (where.get(KEYS[1]) == KEPT[1]).all()  # Fresh or from disk: the same numbers.
        assert (where.get(KEYS[0]) == KEPT[0]).all()
        assert where.get(KEYS[4]) is None
    assert VectorStore("another", tmp_path).get(KEYS[0]) is None


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    one, other = VectorStore("model", tmp_path), VectorStore("model", tmp_path)
    for number, store in enumerate((one, other, one, other)):
        store.add([KEYS[number]], VECTORS[number : number + 1])
    last = VectorStore("model", tmp_path)
    assert all((last.get(KEYS[number]) == KEPT[number]).all() for number in range(4))


@given(st.data())
def test_a_damaged_file_never_gives_a_wrong_vector(tmp_path_factory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("vectors")
    store = VectorStore("model", folder)
    store.add(KEYS[:3], VECTORS[:3])
    whole = bytearray(store.file.read_bytes())
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] ^= data.draw(st.integers(1, 255))
    store.file.write_bytes(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    after = VectorStore("model", folder)
    for number in range(3):
        found = after.get(KEYS[number])
        assert found is None or (found == KEPT[number]).all()
    after.add(KEYS[3:], VECTORS[3:])
    last = VectorStore("model", folder)
    for number in range(3, 5):
        assert (last.get(KEYS[number]) == KEPT[number]).all()


def test_a_model_of_another_width_begins_anew(tmp_path: Path) -> None:
    VectorStore("model", tmp_path).add(KEYS[:3], VECTORS[:3])
    store = VectorStore("model", tmp_path)
    assert store.get(KEYS[0]) is not None
    store.add(KEYS[3:4], VECTORS[3:4, :2])
    for where in (store, VectorStore("model", tmp_path)):
        assert where.get(KEYS[0]) is None
        assert (where.get(KEYS[3]) == KEPT[3, :2]).all()


def test_a_disk_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = VectorStore("model", tmp_path / "file")
    store.add(KEYS[:1], VECTORS[:1])
    assert (store.get(KEYS[0]) == KEPT[0]).all()


def test_it_lies_in_the_users_cache(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "etude" / "vectors"
