"""search: what the agent reads, after its own edits and commands too, and when something fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.harness.chunks.parts import EmbeddingServer, WordEmbedder

from etude.harness import OverlayWorkspace, Toolbox, ToolCall, ToolLimits, load_profile
from etude.harness.chunks import EndpointEmbedder
from etude.harness.external_services import ExternalServices
from etude.harness.schema import builtin_schema

FULL = load_profile("full")
FILES = {
    "shop/cart.py": b"class Cart:\n    def delete_item(self, name):\n        del self.items[name]\n"
    b"        self.save()\n        return name\n",
    "shop/tax.py": b"def rate(country):\n    return RATES[country]\n",
}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def toolbox(outside: ExternalServices | None = None) -> Toolbox:
    return Toolbox(FULL.schemas(), OverlayWorkspace(FILES), ToolLimits(), FULL, outside=outside)


async def said(bench: Toolbox, name: str = "search", **arguments: Any) -> str:
    call = ToolCall("1", name, arguments, json.dumps(arguments))
    return (await bench.run(call, max_tokens=10_000, count=len)).output


def say(bench: Toolbox, name: str = "search", **arguments: Any) -> str:
    return asyncio.run(said(bench, name, **arguments))


def test_where_what_and_its_first_lines() -> None:
    answer = say(toolbox(), query="delete an item")
    assert answer.startswith("shop/cart.py:2-5 Cart.delete_item\n      def delete_item(self, name):\n          del ")
    assert "return name" not in answer


def test_what_finds_nothing_and_what_is_no_question() -> None:
    assert say(toolbox(), query="zebra") == "Nothing fits."
    assert say(toolbox(), query="  ") == "Say what to search for."
    assert say(toolbox(), query="rate", path="../up") == "'../up' is not a path inside the workspace."
    assert say(toolbox(), query="rate", path="shop/cart.py") == "Nothing fits."
    assert say(toolbox(), query="rate", path="/work/shop").startswith("shop/tax.py:1-2 rate\n")


def test_files_are_seen_as_they_are() -> None:
    bench = toolbox()
    assert say(bench, query="zebra") == "Nothing fits."
    say(bench, "write", path="zoo.py", text="def zebra():\n    return 1\n")
    assert say(bench, query="zebra").startswith("zoo.py:1-2 zebra\n")
    say(bench, "move", path="zoo.py", target="animals.py")
    assert say(bench, query="zebra").startswith("animals.py:1-2 zebra\n")
    say(bench, "replace", path="animals.py", old="zebra", new="horse")
    assert say(bench, query="zebra") == "Nothing fits."
    asyncio.run(bench.workspace.write("made/by/command.go", b"package x\n\nfunc Zebra() {\n}\n"))
    assert say(bench, query="zebra").startswith("made/by/command.go:3-4 Zebra\n")


def test_meaning_counts_where_there_is_an_embedder() -> None:
    bench = toolbox(ExternalServices(embedder=WordEmbedder()))
    assert say(bench, query="erase").startswith("shop/cart.py:2-5 Cart.delete_item\n")
    assert say(toolbox(), query="erase") == "Nothing fits."


def test_an_endpoint_outside_of_the_box_and_its_failure_in_one_line() -> None:
    async def work() -> tuple[str, str]:
        async with EmbeddingServer() as server:
            bench = toolbox(ExternalServices(embedder=EndpointEmbedder(server.url, "model", attempts=1)))
            found = await said(bench, query="erase")
            server.answers = [401]
            return found, await said(bench, query="delete an item")

    found, failed = asyncio.run(work())
    assert found.startswith("shop/cart.py:2-5 Cart.delete_item\n")
    assert failed.startswith("shop/cart.py:2-5 Cart.delete_item\n")
    last = failed.splitlines()[-1]
    assert last.startswith("(found by words alone: http://127.0.0.1:")
    assert last.endswith("/v1/embeddings answered with status 401)")


def test_it_only_reads_and_is_not_in_the_compact_profile() -> None:
    schema = builtin_schema("search")
    assert (schema.access, schema.place) == ("read", "path")
    assert "search" in FULL.tools
    assert "search" not in load_profile("compact").tools
    scope = toolbox().scope(ToolCall("1", "search", {"query": "x", "path": "shop"}, ""))
    assert (scope.access, scope.path) == ("read", "shop")
