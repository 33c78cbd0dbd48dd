"""Code that the verbs on tasks share: finding the tasks that a user named, and opening a grader."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.sandbox.contract import NO_EGRESS, RequestRefused
from etude.sandbox.egress import parse_egress
from etude.tasks import Environments, Grader, Split, Task, TaskError, read_task
from etude.tasks.directory import find_tasks
from etude.tasks.environment import HostIndexes, user_cache


def named_tasks(paths: Iterable[Path]) -> list[Path]:
    """Return the task directories among the paths and below them. Raise TaskError for a path without any."""
    found: dict[Path, None] = {}
    for path in paths:
        below = find_tasks(path)
        if not below:
            raise TaskError(f"{path}: expected a task, or a folder with tasks in it: there is no task.toml")
        found |= dict.fromkeys(below)
    return list(found)


def named_of_every_split(paths: Iterable[Path]) -> list[Task]:
    return [read_task(directory, set(Split)) for directory in named_tasks(paths)]


def one_task(path: Path) -> Task:
    """Read the task in this directory, of any split: training must not read dev and test tasks, but a person may."""
    if not (path / "task.toml").is_file():
        raise TaskError(f"{path}: expected a task's directory, there is no task.toml")
    return read_task(path, set(Split))


def kept_environments(store: Path) -> Path:
    return store.absolute() / "environments"


@asynccontextmanager
async def opened_grader(store: Path, egress: str) -> AsyncIterator[Grader]:
    try:
        policy = parse_egress(egress) if egress else NO_EGRESS
    except RequestRefused as error:
        raise TaskError(f"--egress: {error}") from error
    sandboxes = open_sandboxes(SandboxRecipe(), store.absolute())
    try:
        host_indexes = HostIndexes(user_cache(), lambda line: print(line, file=sys.stderr, flush=True))
        environments = Environments(sandboxes, kept_environments(store), egress=policy, host_indexes=host_indexes)
        yield Grader(sandboxes, environments=environments)
    finally:
        await sandboxes.close()
