"""The registry of task sources, which generate tasks. A source makes the same task for equal (name, version, seed,
split, index), whatever it made before, so generation can be resumed."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from etude.recipe.acting import TasksRecipe
from etude.tasks.directory import read_task, write_task
from etude.tasks.task import Split, Task

_BETWEEN_DRAWS = 1_000_000
"""Difference between the seeds of two successive draws of test tasks. A run seed below it never repeats the test tasks
of another run seed or draw."""


class UnknownSource(Exception):
    """There is no task source of this name. The message lists the known names."""


@runtime_checkable
class TaskSource(Protocol):
    """A generator of tasks for the three splits."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """Increased with every change that makes the same seed produce other tasks."""
        ...

    def make(self, split: Split, index: int, seed: int, directory: Path) -> tuple[Task, Mapping[str, bytes]]:
        """Return a task of this split, and the files of its directory. Nothing is written."""
        ...


_CATEGORIES = {
    "debugging": "DebuggingSource",
    "devops": "DevopsSource",
    "documentation": "DocumentationSource",
    "features": "FeaturesSource",
    "images": "ImagesSource",
    "migration": "MigrationSource",
    "refactor": "RefactorSource",
    "review": "ReviewSource",
    "testing": "TestingSource",
    "workflows": "WorkflowsSource",
}


def _category(name: str) -> Callable[[TasksRecipe], TaskSource]:
    return lambda _: getattr(import_module(f"etude.tasks.categories.{name}"), _CATEGORIES[name])()


def _microrepo(recipe: TasksRecipe) -> TaskSource:
    source: TaskSource = import_module("etude.tasks.sources.microrepo.source").MicroRepoSource(recipe.test_cells)
    return source


# Imported by name, so that a source is loaded only when it is used.
_SOURCES: dict[str, Callable[[TasksRecipe], TaskSource]] = {
    "microrepo": _microrepo,
    **{name: _category(name) for name in _CATEGORIES},
}


def register_source(name: str, make: Callable[[], TaskSource]) -> None:
    if name in _SOURCES:
        raise ValueError(f"there is a task source {name!r} already")
    _SOURCES[name] = lambda _: make()


def source_names() -> list[str]:
    return sorted(_SOURCES)


def open_source(name: str, recipe: TasksRecipe | None = None) -> TaskSource:
    if name not in _SOURCES:
        raise UnknownSource(f"no task source {name!r}; there are: {', '.join(sorted(_SOURCES))}")
    return _SOURCES[name](recipe or TasksRecipe())


def generate_tasks(recipe: TasksRecipe, seed: int, folder: Path) -> list[Task]:
    """Generate `<folder>/<split>/<task id>/` for every task of the recipe, or reuse those that exist. Returns the tasks
    of all splits."""
    source = open_source(recipe.source, recipe)
    test_seed = seed + recipe.test_draw * _BETWEEN_DRAWS
    parts = ((Split.TRAIN, recipe.train, seed), (Split.DEV, recipe.dev, seed), (Split.TEST, recipe.test, test_seed))
    return [task for split, count, drawn in parts for task in make_tasks(source, split, count, drawn, folder)]


def make_tasks(
    source: TaskSource,
    split: Split,
    count: int,
    seed: int,
    folder: Path,
    made: Callable[[Task], None] = lambda _: None,
) -> list[Task]:
    """Generate `count` tasks of a split, or reuse those that exist. `made` is called with each task."""
    below = folder / split.value
    below.mkdir(parents=True, exist_ok=True)
    for torn in below.glob(".*.tmp"):
        shutil.rmtree(torn)
    tasks: list[Task] = []
    for index in range(count):
        directory = below / f"{source.name}-{split.value}-{index:05d}"
        if _made_already(directory, source, seed):
            task = read_task(directory, {split})
        else:
            task, files = source.make(split, index, seed, directory)
            write_task(task.require(split), files)
        tasks.append(task)
        made(task)
    return tasks


def _made_already(directory: Path, source: TaskSource, seed: int) -> bool:
    """Return whether the directory has this task already. A directory appears only when it is complete, so equal
    source, version and seed are enough."""
    try:
        config = tomllib.loads((directory / "task.toml").read_text(encoding="utf-8"))
        made = config["metadata"]["etude"]["provenance"]
        return (made["source"], made["version"], made["seed"]) == (source.name, source.version, seed)
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return False
