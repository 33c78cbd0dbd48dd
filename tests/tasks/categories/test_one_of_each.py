"""A task of every category: graded rightly by root and by an ordinary user alike; only the second user is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.tasks import Judgement

from ..conftest import Boxes
from .grading import one_task, sealing, solutions, verdicts

SOURCES = (
    *("debugging", "features", "testing", "documentation", "review", "migration", "refactor"),
    *("devops", "workflows", "images"),
)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_nothing_fails_and_both_solutions_pass(boxes: Boxes, tmp_path: Path, source: str) -> None:
    task = one_task(source, tmp_path)
    found = verdicts(boxes, task, solutions(task))
    assert {name: verdict.judgement for name, verdict in found.items()} == {
        "patch": Judgement.PASS,
        "other": Judgement.PASS,
        "nothing": Judgement.FAIL,
    }, found
    assert {verdict.evidence.sealed for verdict in (found["patch"], found["other"])} == {sealing(boxes)}
