"""Debugging and features: packages with something damaged or taken out, graded by their hidden suites. All tests take
the same package, whose bugs are found once."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.tasks import Split, open_source, reference_diff
from etude.tasks.categories.features import features_of
from etude.tasks.categories.packages import package_of
from etude.tasks.categories.variants import try_variants

from ..conftest import Grade
from .grading import graded, one_task, workspace
from .test_one_of_each import SOURCES


def test_what_is_taken_out_is_gone_and_asked_for() -> None:
    package, found = package_of("package:rota"), features_of("package:rota")
    assert {feature.kind for feature in found} == {"function", "option"}
    outcomes = try_variants({**package.files, **package.tests}, [feature.without for feature in found])
    for feature, outcome in zip(found, outcomes, strict=True):
        assert outcome.failed == feature.tests
        assert feature.without.keys() == package.files.keys()
    turn = next(feature for feature in found if "Add `turn" in feature.request)
    assert "Add `turn(names, week, steps=1)` to rota/shifts.py" in turn.request
    assert "turn" not in turn.without["rota/__init__.py"].decode()
    assert b"def turn" not in turn.without["rota/shifts.py"]
    rest = next(feature for feature in found if "`rest`, 11 by default" in feature.request)
    assert b"def tired(shifts):" in rest.without["rota/pay.py"]
    assert b"- end < 11:" in rest.without["rota/pay.py"]


def test_a_bug_is_mended_or_it_is_not(grade: Grade, seals: bool, tmp_path: Path) -> None:
    task = one_task("debugging", tmp_path, index=3)
    path = next(name for name in workspace(task) if f"+++ b/{name}" in reference_diff(task))
    found = graded(grade, task, {"nothing": {}, "gone": {path: None}})
    assert {str(verdict.judgement) for verdict in found.values()} == {"fail"}
    (honest,) = grade(task, reference_diff(task))
    assert honest.passed
    assert honest.evidence.sealed == seals


@pytest.mark.parametrize("source", SOURCES)
def test_equal_seeds_make_equal_tasks_and_others_do_not(source: str, tmp_path: Path) -> None:
    first, again, other = (open_source(source).make(Split.TRAIN, 2, seed, tmp_path) for seed in (5, 5, 6))
    assert first == again
    assert first[1] != other[1]
