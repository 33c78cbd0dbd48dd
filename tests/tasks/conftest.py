"""Tasks made once, and real boxes, which tests share: a test that is a coroutine runs in the loop of these boxes."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.sandbox.contract import Box, BoxSpec, Feature, Sandboxes
from etude.tasks import Grader, Split, Task, Verdict, make_tasks, open_source

Boxes = Callable[[], AbstractAsyncContextManager[Sandboxes]]


class Grade(Protocol):
    def __call__(self, task: Task, *diffs: str) -> list[Verdict]: ...


@pytest.fixture(scope="session", autouse=True)
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    named = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    pyfuncitem.funcargs["loop"].run(pyfuncitem.obj(**named), context=contextvars.copy_context())
    return True


@pytest.fixture(scope="session")
def tasks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="session")
def train_tasks(tasks_folder: Path) -> list[Task]:
    return make_tasks(open_source("microrepo"), Split.TRAIN, 40, 1, tasks_folder)


@pytest.fixture(scope="session")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Boxes:
    """Opens boxes for one test alone, which takes a third of a second."""
    root = tmp_path_factory.mktemp("boxes")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Sandboxes]:
        sandboxes = open_sandboxes(SandboxRecipe(), root)
        try:
            yield sandboxes
        finally:
            await sandboxes.close()

    return opened


@pytest.fixture(scope="session")
def sandboxes(loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandboxes]:
    async def opened() -> Sandboxes:
        return open_sandboxes(SandboxRecipe(), tmp_path_factory.mktemp("shared-boxes"))

    found = loop.run(opened())
    yield found
    loop.run(found.close())


@pytest.fixture
def grader(sandboxes: Sandboxes) -> Grader:
    return Grader(sandboxes)


@pytest.fixture
def examined(sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> list[BoxSpec]:
    """The boxes that verifiers have made."""
    made, create = list[BoxSpec](), sandboxes.create

    async def counted(spec: BoxSpec) -> Box:
        if spec.name == "grader":
            made.append(spec)
        return await create(spec)

    monkeypatch.setattr(sandboxes, "create", counted)
    return made


@pytest.fixture(scope="session")
def seals(sandboxes: Sandboxes) -> bool:
    """Whether a verdict can be sealed here: an ordinary user's boxes have no second user."""
    return Feature.SECOND_USER in sandboxes.features


@pytest.fixture(scope="session")
def grade(loop: asyncio.Runner, sandboxes: Sandboxes) -> Grade:
    """Verdicts on one diff after the other, by one grader."""

    def graded(task: Task, *diffs: str) -> list[Verdict]:
        async def run() -> list[Verdict]:
            grader = Grader(sandboxes)
            return [await grader.grade(task, diff) for diff in diffs]

        return loop.run(run())

    return graded


def by_name(grade: Grade, task: Task, diffs: Mapping[str, str]) -> dict[str, Verdict]:
    return dict(zip(diffs, grade(task, *diffs.values()), strict=True))
