from __future__ import annotations

from collections.abc import AsyncIterator
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
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(name="setup")
async def real_setup(tmp_path: Path, anyio_backend: str) -> AsyncIterator[RolloutSetup]:
    """Over real boxes and the real grader."""
    sandboxes = GatedSandboxes(open_sandboxes(RECIPE.sandbox, tmp_path / "sandboxes"), 4)
    try:
        grader = Grader(sandboxes)
        yield RolloutSetup(sandboxes, grader, RECIPE.harness, RECIPE.sandbox, grader.environments)
    finally:
        await sandboxes.close()
