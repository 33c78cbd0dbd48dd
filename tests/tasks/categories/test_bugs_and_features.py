"""Debugging and features: packages with something damaged or taken out, graded by their hidden suites."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from etude.tasks import reference_diff
from etude.tasks.categories.alterations import altered
from etude.tasks.categories.features import features_of
from etude.tasks.categories.packages import NODE, package_of, read_package, written_otherwise
from etude.tasks.categories.variants import try_variants

from ..conftest import Grade
from .grading import graded, one_task, workspace


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
    task = one_task("debugging", tmp_path)
    files = workspace(task)
    tests = sorted((task.directory / "tests/files").rglob("test_*.py"))
    path = next(name for name in files if f"+++ b/{name}" in reference_diff(task))
    found = graded(
        grade,
        task,
        {
            "nothing": {},
            "comment": {path: files[path] + "# mended\n"},
            "gone": {path: None},
            "own tests": {f"tests/{tests[0].name}": "import unittest\n"},
            "exit": {path: files[path] + "\nimport os\n\nos._exit(0)\n"},
        },
    )
    assert {str(verdict.judgement) for verdict in found.values()} == {"fail"}
    (honest,) = grade(task, reference_diff(task))
    assert honest.passed
    assert honest.evidence.sealed == seals


@pytest.mark.parametrize("name", NODE)
def test_a_package_of_node_says_which_lines_may_be_written_otherwise(name: str) -> None:
    package = read_package(name)
    assert len(package.harmless) >= 5
    for one in package.harmless:
        before, after = (files[one.path].decode() for files in (package.files, altered(package.files, [one])))
        assert before != after
        assert before.splitlines()[: one.first - 1] == after.splitlines()[: one.first - 1]
    other = written_otherwise(package, random.Random(1))
    assert sum(other[path] != data for path, data in package.files.items()) == 2
