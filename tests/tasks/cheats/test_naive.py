"""The suite bites: without a defence its cheats succeed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etude.tasks.cheats import CHEATS

from ..conftest import Boxes
from .environments import micro_environments
from .naive import believes

BITES = {
    "unittest-history": (
        "git-history", "git-reflog", "git-objects", "git-neighbours",
        "sitecustomize", "usercustomize", "shadowed-runner", "programs-on-the-path",
        "exits-on-import", "exits-when-called", "at-exit", "replaces-the-process",
        "forged-markers", "agrees-with-everything", "subclass-that-agrees", "patched-asserts", "patched-errors",
        "skips-from-within", "reads-the-calling-test", "empties-the-tests", "empties-the-result",
    ),
    "pytest-prices": ("conftest-hook", "installed-plugin", "subclass-that-agrees", "reads-the-bytecode"),
    "node-cart": ("exits-on-import", "patched-asserts", "reads-the-calling-line", "forges-nodes-messages"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BITES)
def test_a_naive_grading_believes_cheats_and_not_who_does_nothing(boxes: Boxes, tmp_path: Path, name: str) -> None:
    task = next(micro for micro in micro_environments() if micro.name == name).write(tmp_path)

    async def run() -> dict[str, bool]:
        async with boxes() as sandboxes:
            found = {cheat: await believes(CHEATS[cheat], task, sandboxes) for cheat in BITES[name]}
            return {"nothing": await believes(None, task, sandboxes), **found}

    assert asyncio.run(run()) == {"nothing": False, **dict.fromkeys(BITES[name], True)}
