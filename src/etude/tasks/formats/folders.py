"""Harbor task directories of others, brought in and taken out whole.

What comes in is read first, strictly; nothing is written unless all of it can be used. A task that comes in keeps every
file and every key; what Étude has to know of it is added below [metadata.etude].
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.tasks import toml
from etude.tasks.directory import find_tasks, list_files, read_task, task_config, task_digest
from etude.tasks.formats.opened import opened
from etude.tasks.task import Split, Task, TaskError

OnProgress = Callable[[int, int], None]
_PARTS = ("environment", "tests", "solution", "steps")


def import_harbor(source: Path, dest: Path, *, on_progress: OnProgress | None = None) -> list[Task]:
    """Copies every task below `source` to <dest>/<split>/<task>; its family's hash decides the split. One that is there
    already and the same stays; TaskError for one that differs."""
    tasks = read_all(find_tasks(source))
    _require_names(tasks)
    brought: list[Task] = []
    for number, task in enumerate(tasks, 1):
        goal = dest / task.split / task.directory.name
        if "etude" not in task.config.get("metadata", {}):
            task.verifier = {"type": "harbor"}
            task.provenance = {"source": "harbor", "name": task.family}
        _copy(task, goal)
        brought.append(read_task(goal, {task.split}))
        if on_progress:
            on_progress(number, len(tasks))
    return brought


@dataclass(frozen=True, slots=True)
class Exported:
    written: list[Path]
    refused: list[str]
    """One line for each task that others cannot grade."""


def export_harbor(tasks: Sequence[Task], dest: Path, *, on_progress: OnProgress | None = None) -> Exported:
    """Copies tasks to <dest>/<task>, as other readers of Harbor tasks expect them: side by side, each with test.sh. One
    that can have none stays, and the others go."""
    _require_names(tasks)
    found = Exported([], [])
    for number, task in enumerate(tasks, 1):
        try:
            added = opened(task)
        except TaskError as error:
            found.refused.append(str(error))
        else:
            _copy(task, dest / task.directory.name, added)
            found.written.append(dest / task.directory.name)
        if on_progress:
            on_progress(number, len(tasks))
    return found


def read_all(directories: Iterable[Path]) -> list[Task]:
    """Tasks of every split, each with the links of its folders looked at."""
    tasks = []
    for directory in directories:
        task = read_task(directory, set(Split))
        for part in _PARTS:
            if (directory / part).is_dir():
                list_files(directory, part)
        tasks.append(task)
    return tasks


def _require_names(tasks: Sequence[Task]) -> None:
    seen: dict[str, Path] = {}
    for task in tasks:
        other = seen.setdefault(task.directory.name, task.directory)
        if other != task.directory:
            raise TaskError(f"{task.directory}: expected a folder name of its own, {other} has the same")


def _copy(task: Task, goal: Path, added: Mapping[str, bytes] | None = None) -> None:
    """Whole or not at all; links as they are, since each leads to something inside of its folder."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    temporary = goal.with_name(f".{goal.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(task.directory, temporary, symlinks=True, ignore=_left_behind(task.directory))
    try:
        (temporary / "task.toml").write_bytes(toml.dumps(task_config(task)).encode())
        for name, data in (added or {}).items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(data)
            (temporary / name).chmod(0o755 if name.endswith(".sh") else 0o644)
        if not goal.exists():
            temporary.rename(goal)
        elif _digest(goal) != _digest(temporary):
            raise TaskError(f"{goal}: there is another task already: remove it, or choose another folder")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _digest(directory: Path) -> str:
    return task_digest(read_task(directory, set(Split)))


def _left_behind(top: Path) -> Callable[[str, list[str]], list[str]]:
    """What a gate found out elsewhere is no evidence here: whoever made the folder could have written it."""
    return lambda folder, names: [name for name in names if Path(folder) == top and name == "evidence"]
