from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from etude.recipe import Recipe
from etude.rollout import GatedSandboxes, RolloutSetup
from etude.sandbox import open_sandboxes
from etude.tasks.grader import Grader
from etude.tasks.sources import make_tasks, open_source
from etude.tasks.task import Split, Task

# The tests' tokenizer has not seen such code: an edit takes more of its tokens.
RECIPE = Recipe.model_validate({"name": "rollout-tests", "harness": {"max_turn_tokens": 96}})


@pytest.fixture(scope="session")
def tasks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="session")
def train(tasks_folder: Path) -> list[Task]:
    return make_tasks(open_source("microrepo"), Split.TRAIN, 6, 1, tasks_folder)


@pytest.fixture(scope="session")
def dev(tasks_folder: Path) -> list[Task]:
    return make_tasks(open_source("microrepo"), Split.DEV, 3, 1, tasks_folder)


@pytest.fixture
def with_setup(tmp_path: Path) -> Callable[[Callable[[RolloutSetup], Awaitable[None]]], None]:
    """Runs a coroutine over real boxes and the real grader."""

    def run(play: Callable[[RolloutSetup], Awaitable[None]], recipe: Recipe = RECIPE) -> None:
        async def main() -> None:
            sandboxes = GatedSandboxes(open_sandboxes(recipe.sandbox, tmp_path / "sandboxes"), 4)
            try:
                grader = Grader(sandboxes)
                await play(RolloutSetup(sandboxes, grader, recipe.harness, recipe.sandbox, grader.environments))
            finally:
                await sandboxes.close()

        asyncio.run(main())

    return run
