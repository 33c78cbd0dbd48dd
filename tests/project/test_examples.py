"""Each example does what its first lines say."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.harness.chat_server import ChatServer, completion

from etude.harness import write_sample
from etude.tasks.sources import registry

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_short_and_tested_here() -> None:
    tested = {"add_a_tool", "own_tasks", "own_endpoint", "own_folder"}
    assert {file.stem for file in EXAMPLES.glob("*.py")} == tested
    assert all(len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 80 for name in tested)


def test_add_a_tool() -> None:
    seen = "1 Cart\n2 total\n6 main"
    outcome = asyncio.run(example("add_a_tool").main())
    assert [(event.name, event.output) for event in outcome.tools] == [("outline", seen)]

    async def play() -> list[str]:
        calls = [
            ("outline", {"path": "shop.py"}),
            ("outline", {"path": "nothing.py"}),
            ("outline", {"file": "shop.py"}),
        ]
        async with ChatServer([completion(calls=calls), completion(text="done")]) as server:
            outcome = await example("add_a_tool").main(["--url", server.url])
            offered = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
            assert "outline" in offered
            return [event.output for event in outcome.tools]

    said = asyncio.run(play())
    assert said[0] == seen
    assert "no argument 'file'" in said[2]


def test_own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SOURCES", dict(registry._SOURCES))  # the example adds one for good
    results = asyncio.run(example("own_tasks").main(tmp_path))
    assert [result.survived for result in results] == [True] * 3


PURSE = {
    "purse.py": "def left(coins, price):\n    return sum(coins) - price\n",
    "tests/__init__.py": "",
    "tests/test_purse.py": (
        "import unittest\nimport purse\n\n\nclass PurseTest(unittest.TestCase):\n"
        "    def test_left(self):\n        self.assertEqual(purse.left([5, 12], 6), 11)\n"
    ),
}
MISLAID = "--- a/purse.py\n+++ b/purse.py\n@@ -1,2 +1,2 @@\n def left(coins, price):\n"
MISLAID += "-    return sum(coins) - price\n+    return max(coins) - price\n"


@pytest.mark.parametrize("diff", ["", MISLAID])
def test_own_folder(tmp_path: Path, diff: str) -> None:
    for path, text in PURSE.items():
        (tmp_path / "purse" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "purse" / path).write_text(text)
    result = asyncio.run(example("own_folder").main(tmp_path / "purse", tmp_path / "task", diff))
    assert result.survived, result
    damaged = (tmp_path / "task/environment/repo/purse.py").read_text()
    assert damaged == PURSE["purse.py"].replace("sum", "max") if diff else damaged != PURSE["purse.py"]
    assert not (tmp_path / "task/environment/repo/tests").exists()


def test_own_endpoint(tmp_path: Path) -> None:
    folder = write_sample(tmp_path / "sample")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    first = next(name for name, data in sorted(before.items()) if name.endswith(".py") and data)

    async def play() -> str:
        calls = [("edit", {"path": first, "lines": "1 # a line of the agent"})]
        async with ChatServer([completion(calls=calls), completion(text="done")]) as server:
            return await example("own_endpoint").main(server.url, "some-model", folder, "change a line")

    diff = asyncio.run(play())
    assert "+# a line of the agent" in diff
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
