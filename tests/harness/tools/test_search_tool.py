"""search: what the agent reads, after its own edits and commands too, and when something fails."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness.chunks.parts import EmbeddingServer
from tests.harness.parts import COMPACT, FULL, Bench

from etude.harness import OverlayWorkspace, ToolCall
from etude.harness.chunks import EndpointEmbedder
from etude.harness.external_services import ExternalServices
from etude.harness.schema import builtin_schema

FILES = {
    "shop/cart.py": b"class Cart:\n    def delete_item(self, name):\n        del self.items[name]\n"
    b"        self.save()\n        return name\n",
    "shop/tax.py": b"def rate(country):\n    return RATES[country]\n",
}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def bench(outside: ExternalServices | None = None) -> Bench:
    return Bench(OverlayWorkspace(FILES), outside=outside)


def search(query: str, **arguments: object) -> str:
    return bench().say_now("search", query=query, **arguments)


def test_where_what_and_its_first_lines() -> None:
    answer = search(query="delete an item")
    assert answer.startswith("shop/cart.py:2-5 Cart.delete_item\n      def delete_item(self, name):\n          del ")
    assert "return name" not in answer


def test_what_finds_nothing_and_what_is_no_question() -> None:
    assert search(query="zebra") == "Nothing fits."
    assert search(query="  ") == "Say what to search for."
    assert search(query="rate", path="../up") == "'../up' is not a path inside the workspace."
    assert search(query="rate", path="shop/cart.py") == "Nothing fits."
    assert search(query="rate", path="/work/shop").startswith("shop/tax.py:1-2 rate\n")


def test_files_are_seen_as_they_are() -> None:
    here = bench()
    assert here.say_now("search", query="zebra") == "Nothing fits."
    here.say_now("write", path="zoo.py", text="def zebra():\n    return 1\n")
    assert here.say_now("search", query="zebra").startswith("zoo.py:1-2 zebra\n")
    here.say_now("move", path="zoo.py", target="animals.py")
    assert here.say_now("search", query="zebra").startswith("animals.py:1-2 zebra\n")
    here.say_now("replace", path="animals.py", old="zebra", new="horse")
    assert here.say_now("search", query="zebra") == "Nothing fits."
    asyncio.run(here.workspace.write("made/by/command.go", b"package x\n\nfunc Zebra() {\n}\n"))
    assert here.say_now("search", query="zebra").startswith("made/by/command.go:3-4 Zebra\n")


@in_loop
async def test_an_endpoint_outside_of_the_box_and_its_failure_in_one_line() -> None:
    async with EmbeddingServer() as server:
        here = bench(ExternalServices(embedder=EndpointEmbedder(server.url, "model", attempts=1)))
        assert await bench().say("search", query="erase") == "Nothing fits.", "by words alone"
        assert (await here.say("search", query="erase")).startswith("shop/cart.py:2-5 Cart.delete_item\n")
        server.answers = [401]
        failed = await here.say("search", query="delete an item")
    assert failed.startswith("shop/cart.py:2-5 Cart.delete_item\n")
    last = failed.splitlines()[-1]
    assert last.startswith("(found by words alone: http://127.0.0.1:")
    assert last.endswith("/v1/embeddings answered with status 401)")


def test_it_only_reads_and_is_not_in_the_compact_profile() -> None:
    schema = builtin_schema("search")
    assert (schema.access, schema.place) == ("read", "path")
    assert "search" in FULL.tools
    assert "search" not in COMPACT.tools
    scope = bench().toolbox.scope(ToolCall("1", "search", {"query": "x", "path": "shop"}, ""))
    assert (scope.access, scope.path) == ("read", "shop")
