"""An index file is believed whole or not at all, and replaced whole while others read it."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.search.trees import FILES, RIPGREP, write

from etude.harness.search import Pattern
from etude.harness.search.index import Index
from etude.harness.search.query import need_of
from etude.harness.search.store import load, save

PROBE = Pattern("probe")


def built(root: Path) -> Index:
    return Index.build(os.fsencode(root), RIPGREP.files(os.fsencode(root)))


def told(index: Index) -> tuple[object, ...]:
    shards = [(shard.rows.tolist(), shard.files.tolist()) for shard in index.shards]
    return index.paths, index.states, index.always, index.linked, index.ids, shards


@settings(max_examples=12, deadline=None)
@given(FILES)
def test_what_is_loaded_is_what_was_saved(files):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "tree"
        root.mkdir()
        write(root, files)
        index = built(root)
        save(index, os.fsencode(root), Path(place) / "cache" / "one.index")
        again = load(os.fsencode(root), Path(place) / "cache" / "one.index")
        assert again is not None
        assert told(again) == told(index)
        again.update(os.fsencode(root), list(again.paths))
        again.compact()
        assert sorted(again.paths) == sorted(index.paths)
        assert again.candidates(need_of(PROBE)) == index.candidates(need_of(PROBE))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A folder's name, and the index file of it."""
    root = tmp_path_factory.mktemp("saved") / "tree"
    write(root, {"a": b"probe\n", "b": b"none\n"})
    save(built(root), os.fsencode(root), root.parent / "index")
    assert load(os.fsencode(root), root.parent / "index") is not None
    return os.fsencode(root), (root.parent / "index").read_bytes()


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.booleans())
def test_a_torn_file_is_no_index(saved, tmp_path_factory, where, cut):
    root, whole = saved
    at = int(where * len(whole))
    place = tmp_path_factory.getbasetemp() / "torn"
    assert load(root, place) is None
    place.write_bytes(whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert load(root, place) is None
    place.unlink()


def test_an_index_of_another_folder_is_none(tmp_path):
    write(tmp_path / "a", {"x": b"probe\n"})
    save(built(tmp_path / "a"), os.fsencode(tmp_path / "a"), tmp_path / "index")
    assert load(os.fsencode(tmp_path / "b"), tmp_path / "index") is None


def test_readers_see_a_whole_index_while_others_write(tmp_path):
    root, place = tmp_path / "tree", tmp_path / "one.index"
    write(root, {f"{number}": b"probe %d\n" % number for number in range(50)})
    name = os.fsencode(root)
    save(built(root), name, place)
    problems: list[str] = []

    def writer() -> None:
        for _ in range(20):
            save(built(root), name, place)

    writers = [threading.Thread(target=writer) for _ in range(2)]
    for each in writers:
        each.start()
    held = load(name, place)
    while any(each.is_alive() for each in writers):
        index = load(name, place)
        if index is None or len(index.candidates(need_of(PROBE))) != 50:
            problems.append("torn")
    assert not problems
    assert held is not None
    assert len(held.candidates(need_of(PROBE))) == 50
    assert [path.name for path in tmp_path.glob(".*")] == []
