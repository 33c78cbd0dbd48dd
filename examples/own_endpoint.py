"""Bring your own model: any OpenAI-compatible endpoint in the same harness, on a copy-on-write view of a folder.

Run: .venv/bin/python examples/own_endpoint.py http://localhost:8000/v1 MODEL FOLDER "fix the failing check"
The key comes from the environment variable OPENAI_API_KEY, if there is one. Nothing is written to the folder: the diff
is printed, and `patch -p1` applies it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from etude.harness import ChatPolicy, ChatSession, Endpoint, session_schemas
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.sandbox import open_sandboxes

HARNESS = HarnessRecipe(profile="full", max_turns=30, max_tokens=20_000, max_turn_tokens=4_000, summary_trigger=60_000)


async def main(url: str, model: str, folder: Path, task: str) -> str:
    endpoint = Endpoint(url, model, api_key=os.environ.get("OPENAI_API_KEY", ""))
    policy = ChatPolicy(endpoint, session_schemas(HARNESS))
    with tempfile.TemporaryDirectory() as boxes:
        sandboxes = open_sandboxes(SandboxRecipe(), Path(boxes))
        try:
            async with ChatSession(folder, policy, HARNESS, SandboxRecipe(), sandboxes) as session:
                outcome = await session.run(task)
                print(f"{outcome.stop} after {outcome.usage.turns} turns", file=sys.stderr)
                return await session.diff()
        finally:
            await sandboxes.close()
            await policy.aclose()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} URL MODEL FOLDER TASK")
    print(asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])), end="")
