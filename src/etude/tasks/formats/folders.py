"""Imports and exports whole folders of Harbor task directories.

An import validates all tasks before it writes the first one. An imported task keeps every file and key; what Étude
needs to know is added under [metadata.etude].
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.tasks import toml
from etude.tasks.directory import find_tasks, list_files, read_task, task_config, task_digest
from etude.tasks.formats.harbor_export import export_files
from etude.tasks.task import Split, Task, TaskError

OnProgress = Callable[[int, int], None]
_PARTS = ("environment", "tests", "solution", "steps")


def import_harbor(source: Path, dest: Path, *, on_progress: OnProgress | None = None) -> list[Task]:
    """Copy every task below `source` to <dest>/<split>/<task>. An identical task that is there already is kept; a
    different one raises TaskError."""
    tasks = read_all(find_tasks(source))
    _require_unique_folders(tasks)
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
    """One line for each task that other tools cannot grade."""


def export_harbor(tasks: Sequence[Task], dest: Path, *, on_progress: OnProgress | None = None) -> Exported:
    """Copy tasks to <dest>/<task>, side by side as other readers of Harbor tasks expect, each with a test.sh. Tasks for
    which no test.sh can be made are refused; the others are written."""
    _require_unique_folders(tasks)
    found = Exported([], [])
    for number, task in enumerate(tasks, 1):
        try:
            added = export_files(task)
        except TaskError as error:
            found.refused.append(str(error))
        else:
            _copy(task, dest / task.directory.name, added)
            found.written.append(dest / task.directory.name)
        if on_progress:
            on_progress(number, len(tasks))
    return found


def read_all(directories: Iterable[Path]) -> list[Task]:
    """Read tasks of every split, and check the links in their folders."""
    tasks = []
    for directory in directories:
        task = read_task(directory, set(Split))
        for part in _PARTS:
            if (directory / part).is_dir():
                list_files(directory, part)
        tasks.append(task)
    return tasks


def _require_unique_folders(tasks: Sequence[Task]) -> None:
    seen: dict[str, Path] = {}
    for task in tasks:
        other = seen.setdefault(task.directory.name, task.directory)
        if other != task.directory:
            raise TaskError(f"{task.directory}: expected a folder name of its own, {other} has the same")


def _copy(task: Task, goal: Path, added: Mapping[str, bytes] | None = None) -> None:
    """Copy a task atomically. Links stay links, since none leaves the task's folder. An identical task at `goal` is
    kept; a different one raises TaskError."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    temporary = goal.with_name(f".{goal.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(task.directory, temporary, symlinks=True, ignore=_ignore_evidence(task.directory))
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


def _ignore_evidence(top: Path) -> Callable[[str, list[str]], list[str]]:
    """Return an `ignore` for `copytree` that leaves out evidence/, because whoever made the folder could forge it."""
    return lambda folder, names: [name for name in names if Path(folder) == top and name == "evidence"]
