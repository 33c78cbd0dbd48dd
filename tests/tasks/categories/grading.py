"""Grades several states of a task's workspace, each as the diff that leads there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from etude.harness.editing.diff import unified_diff
from etude.sandbox.contract import Feature
from etude.tasks import Grader, Judgement, Split, Task, Verdict, make_tasks, open_source, read_files

from ..conftest import Boxes

States = Mapping[str, Mapping[str, str | None]]
"""By name: the files that differ from the workspace; None for one that is gone."""


def one_task(source: str, folder: Path, split: Split = Split.TRAIN, index: int = 0) -> Task:
    return make_tasks(open_source(source), split, index + 1, 3, folder)[index]


def workspace(task: Task) -> dict[str, str]:
    return {path: data.decode() for path, data in read_files(task.directory).items()}


def diff_to(task: Task, files: Mapping[str, str | None]) -> str:
    before = read_files(task.directory)
    after = {**before, **{path: text.encode() for path, text in files.items() if text is not None}}
    return unified_diff(before, {path: data for path, data in after.items() if files.get(path, "") is not None})


def verdicts(boxes: Boxes, task: Task, diffs: Mapping[str, str]) -> dict[str, Verdict]:
    async def run() -> dict[str, Verdict]:
        async with boxes() as sandboxes:
            grader = Grader(sandboxes)
            return {name: await grader.grade(task, diff) for name, diff in diffs.items()}

    return asyncio.run(run())


def graded(boxes: Boxes, task: Task, states: States) -> dict[str, Verdict]:
    return verdicts(boxes, task, {name: diff_to(task, files) for name, files in states.items()})


def solutions(task: Task) -> dict[str, str]:
    """The reference, the other honest solution, and nothing."""
    found = {path.stem: path.read_text() for path in sorted((task.directory / "solution").glob("*.diff"))}
    return {**found, "nothing": ""}


def sealing(boxes: Boxes) -> bool:
    """Can a verdict be sealed here? An ordinary user's boxes have no second user."""

    async def features() -> frozenset[Feature]:
        async with boxes() as sandboxes:
            return sandboxes.features

    return Feature.SECOND_USER in asyncio.run(features())


def gated(boxes: Boxes, folder: Path, source: str) -> None:
    """Ten tasks: doing nothing fails, the reference and another honest solution pass, sealed."""
    counts = {Split.TRAIN: 5, Split.DEV: 2, Split.TEST: 3}
    tasks = [
        task for split, count in counts.items() for task in make_tasks(open_source(source), split, count, 7, folder)
    ]
    assert len({task.family for task in tasks}) == 10
    for task in tasks:
        found = verdicts(boxes, task, solutions(task))
        assert found.keys() == {"patch", "other", "nothing"}
        assert found["nothing"].judgement is Judgement.FAIL, (task.id, found["nothing"])
        for name in ("patch", "other"):
            assert found[name].passed, (task.id, name, found[name])
            assert found[name].evidence.sealed == sealing(boxes)
