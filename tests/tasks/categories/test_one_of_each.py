"""A task of every category: graded rightly by root and by an ordinary user alike; only the second user is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.tasks import Judgement, Split, Task, make_tasks, open_source

from ..conftest import Grade, by_name
from .grading import one_task, solutions

SOURCES = (
    *("debugging", "features", "testing", "documentation", "review", "migration", "refactor"),
    *("devops", "workflows", "images"),
)


def assert_sound(grade: Grade, task: Task, *, sealed: bool) -> None:
    found = by_name(grade, task, solutions(task))
    assert {name: verdict.judgement for name, verdict in found.items()} == {
        "patch": Judgement.PASS,
        "other": Judgement.PASS,
        "nothing": Judgement.FAIL,
    }, (task.id, found)
    assert {verdict.evidence.sealed for verdict in (found["patch"], found["other"])} == {sealed}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_nothing_fails_and_both_solutions_pass(grade: Grade, seals: bool, tmp_path: Path, source: str) -> None:
    assert_sound(grade, one_task(source, tmp_path), sealed=seals)


@pytest.mark.soak
@pytest.mark.parametrize("source", SOURCES)
def test_so_it_is_with_ten_tasks(grade: Grade, seals: bool, tmp_path: Path, source: str) -> None:
    counts = {Split.TRAIN: 5, Split.DEV: 2, Split.TEST: 3}
    tasks = [
        one for split, count in counts.items() for one in make_tasks(open_source(source), split, count, 7, tmp_path)
    ]
    assert len({task.family for task in tasks}) == 10
    for task in tasks:
        assert_sound(grade, task, sealed=seals)


@pytest.mark.soak
def test_so_it_is_in_node(grade: Grade, seals: bool, tmp_path: Path) -> None:
    tasks = [
        task
        for split, count in ((Split.TRAIN, 6), (Split.DEV, 3))
        for task in make_tasks(open_source("debugging"), split, count, 5, tmp_path)
        if task.verifier["runner"] == "node"
    ]
    assert [task.family for task in tasks] == ["package:tolls", "package:meter"]
    for task in tasks:
        assert_sound(grade, task, sealed=seals)
