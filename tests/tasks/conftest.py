"""Tasks made once, and real boxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.sandbox.contract import Sandboxes
from etude.tasks import Split, Task, make_tasks, open_source

Boxes = Callable[[], AbstractAsyncContextManager[Sandboxes]]


@pytest.fixture(scope="session")
def tasks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="session")
def train_tasks(tasks_folder: Path) -> list[Task]:
    return make_tasks(open_source("microrepo"), Split.TRAIN, 40, 1, tasks_folder)


@pytest.fixture(scope="session")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Boxes:
    root = tmp_path_factory.mktemp("boxes")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Sandboxes]:
        sandboxes = open_sandboxes(SandboxRecipe(), root)
        try:
            yield sandboxes
        finally:
            await sandboxes.close()

    return opened
