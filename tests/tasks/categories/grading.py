"""Grades several states of a task's workspace, each as the diff that leads there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from etude.harness.editing.diff import unified_diff
from etude.tasks import Split, Task, Verdict, open_source, read_files, write_task
from etude.tasks.change import change_of

from ..conftest import Grade, by_name

States = Mapping[str, Mapping[str, str | None]]
"""By name: the files that differ from the workspace; None for one that is gone."""


def one_task(source: str, folder: Path, split: Split = Split.TRAIN, index: int = 0) -> Task:
    """The task of this index alone: those before it would be drawn for nothing."""
    made = open_source(source)
    task, files = made.make(split, index, 3, folder / split.value / f"{made.name}-{split.value}-{index:05d}")
    write_task(task, files)
    return task


def workspace(task: Task) -> dict[str, str]:
    return {path: data.decode() for path, data in read_files(task.directory).items()}


def diff_to(task: Task, files: Mapping[str, str | None]) -> str:
    before = read_files(task.directory)
    after = {**before, **{path: text.encode() for path, text in files.items() if text is not None}}
    return unified_diff(before, {path: data for path, data in after.items() if files.get(path, "") is not None})


def graded(grade: Grade, task: Task, states: States) -> dict[str, Verdict]:
    return by_name(grade, task, {name: diff_to(task, files) for name, files in states.items()})


def solution(task: Task) -> dict[str, str]:
    """The files that the reference changes, as it leaves them."""
    changed = change_of(
        (task.directory / "solution/patch.diff").read_text(), read_files(task.directory), lambda _: False
    )
    return {path: data.decode() for path, data in changed.files.items() if data is not None}


def solutions(task: Task) -> dict[str, str]:
    """The reference, the other honest solution, and nothing."""
    found = {path.stem: path.read_text() for path in sorted((task.directory / "solution").glob("*.diff"))}
    return {**found, "nothing": ""}
