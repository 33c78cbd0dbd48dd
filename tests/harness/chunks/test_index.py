"""An index that followed changes answers as a fresh one; words and meaning together; an embedder that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.chunks.parts import WordEmbedder

from etude.harness import OverlayWorkspace
from etude.harness.chunks import ChunkIndex, Found, TooManyFiles, VectorStore
from etude.harness.chunks import index as module
from etude.harness.chunks.index import Ranking

FILES = {
    "shop/cart.py": b"class Cart:\n    def delete_item(self, name):\n        del self.items[name]\n\n"
    b"    def total(self):\n        return sum(self.items.values())\n",
    "shop/tax.py": b"def rate(country):\n    return RATES[country]\n",
    "notes.md": b"# Taxes\n\nHow rates are found.\n",
}


def search(index: ChunkIndex, files: dict[str, bytes], query: str, folder: str = ".", most: int = 10) -> Found:
    return asyncio.run(index.search(OverlayWorkspace(files), query, folder, most))


def places(found: Found) -> list[str]:
    return [f"{chunk.path}:{chunk.first}-{chunk.last} {chunk.name}" for chunk in found.chunks]


def test_by_words() -> None:
    index = ChunkIndex()
    assert places(search(index, FILES, "delete an item"))[0] == "shop/cart.py:2-4 Cart.delete_item"
    assert places(search(index, FILES, "rate"))[:2] == ["shop/tax.py:1-2 rate", "notes.md:1-3 "]
    assert places(search(index, FILES, "rate", "shop")) == ["shop/tax.py:1-2 rate"]
    assert places(search(index, FILES, "rate", "notes.md")) == ["notes.md:1-3 "]
    assert places(search(index, FILES, "rate", most=1)) == ["shop/tax.py:1-2 rate"]
    assert search(index, FILES, "zebra") == Found([], 0, 5)
    assert search(index, FILES, "rate", "nowhere") == Found([], 0, 0)


def test_by_meaning_as_well(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    index = ChunkIndex(embedder, VectorStore("words", tmp_path))
    assert places(search(index, FILES, "erase"))[0] == "shop/cart.py:2-4 Cart.delete_item"
    assert search(ChunkIndex(), FILES, "erase").chunks == []
    found = search(index, FILES, "erase")
    assert (found.embedded, found.searched, found.problem) == (5, 5, "")
    # Each chunk once, whatever was asked; what is on disk, by nobody again.
    assert len(embedder.asked) == 5 + 2
    search(ChunkIndex(embedder, VectorStore("words", tmp_path)), FILES, "erase")
    assert len(embedder.asked) == 5 + 3


def test_only_so_many_are_embedded_for_one_search_what_the_words_find_first(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    index = ChunkIndex(embedder, VectorStore("words", tmp_path), most_new=1)
    found = search(index, FILES, "total")
    assert (found.embedded, found.searched) == (1, 5)
    assert "def total" in embedder.asked[0]
    assert places(found) == ["shop/cart.py:5-6 Cart.total"]
    assert [search(index, FILES, "total").embedded for _ in range(5)] == [2, 3, 4, 5, 5]


def test_an_embedder_that_fails_leaves_the_words(tmp_path: Path) -> None:
    index = ChunkIndex(WordEmbedder(fails="no\nluck"), VectorStore("words", tmp_path))
    found = search(index, FILES, "delete an item")
    assert places(found)[0] == "shop/cart.py:2-4 Cart.delete_item"
    assert found.problem == "no luck"


CONTENTS = st.sampled_from([*FILES.values(), b"", b"\0", b"def rate(): pass\n"])
STATES = st.dictionaries(st.sampled_from(["a.py", "b/a.py", "b/c.md", "d.txt"]), CONTENTS, max_size=4)


@settings(max_examples=12)
@given(st.lists(st.tuples(STATES, st.sampled_from([".", "b"])), min_size=1, max_size=4))
def test_what_followed_changes_answers_as_a_fresh_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[dict[str, bytes], str]]
) -> None:
    store = VectorStore("words", tmp_path_factory.mktemp("vectors"))
    followed = ChunkIndex(WordEmbedder(), store)
    query = "erase the rate of a country"

    async def follow() -> None:
        for files, folder in steps:
            workspace = OverlayWorkspace(files)
            await followed.search(workspace, query, folder)
            fresh = await ChunkIndex(WordEmbedder(), store).search(workspace, query)
            assert await followed.search(workspace, query) == fresh

    asyncio.run(follow())


def test_a_folder_of_too_many_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 2)
    with pytest.raises(TooManyFiles, match="3"):
        search(ChunkIndex(), FILES, "rate")
    assert len(search(ChunkIndex(), FILES, "rate", "shop").chunks) == 1


def test_a_file_that_cannot_be_read_is_left_out() -> None:
    class Closed(OverlayWorkspace):
        async def read(self, path: str) -> bytes:
            if path == "shop/tax.py":
                raise PermissionError(path)
            return await super().read(path)

    found = asyncio.run(ChunkIndex().search(Closed(FILES), "rate"))
    assert places(found) == ["notes.md:1-3 "]


def test_a_search_that_is_cancelled_harms_none_that_follows() -> None:
    async def work() -> Found:
        index, workspace = ChunkIndex(), OverlayWorkspace(FILES)
        first = asyncio.create_task(index.search(workspace, "rate"))
        await asyncio.sleep(0)
        first.cancel()
        return await index.search(workspace, "rate")

    assert asyncio.run(work()) == search(ChunkIndex(), FILES, "rate")


def test_what_both_lists_hold_comes_first() -> None:
    assert Ranking([1, 2], [3, 2]).fused()[0] == 2
    assert Ranking([1, 2], []).fused() == [1, 2]
    assert Ranking([], [4, 3]).fused() == [4, 3]
    assert sorted(Ranking([1, 2], [2, 3]).fused()) == [1, 2, 3]
