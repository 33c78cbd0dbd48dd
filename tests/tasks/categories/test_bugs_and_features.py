"""Debugging and features: packages with something damaged or taken out, graded by their hidden suites."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from etude.tasks import Judgement, Split, make_tasks, open_source, reference_diff
from etude.tasks.categories.alterations import altered
from etude.tasks.categories.features import features_of
from etude.tasks.categories.packages import NODE, package_of, read_package, written_otherwise
from etude.tasks.categories.variants import try_variants

from ..conftest import Boxes
from .grading import gated, graded, one_task, sealing, solutions, verdicts, workspace


def test_what_is_taken_out_is_gone_and_asked_for() -> None:
    package, found = package_of("package:rota"), features_of("package:rota")
    assert {feature.kind for feature in found} == {"function", "option"}
    outcomes = try_variants({**package.files, **package.tests}, [feature.without for feature in found])
    for feature, outcome in zip(found, outcomes, strict=True):
        assert outcome is not None
        assert outcome.failed == feature.tests
        assert feature.without.keys() == package.files.keys()
    turn = next(feature for feature in found if "Add `turn" in feature.request)
    assert "Add `turn(names, week, steps=1)` to rota/shifts.py" in turn.request
    assert "turn" not in turn.without["rota/__init__.py"].decode()
    assert b"def turn" not in turn.without["rota/shifts.py"]
    rest = next(feature for feature in found if "`rest`, 11 by default" in feature.request)
    assert b"def tired(shifts):" in rest.without["rota/pay.py"]
    assert b"- end < 11:" in rest.without["rota/pay.py"]


@pytest.mark.parametrize("source", ["debugging", "features"])
def test_equal_seeds_make_equal_tasks_and_others_other_ones(source: str, tmp_path: Path) -> None:
    made = open_source(source)
    one, other, third = (made.make(Split.DEV, 0, seed, tmp_path) for seed in (1, 1, 2))
    assert one == other
    assert one[1] != third[1]


def test_a_bug_is_mended_or_it_is_not(boxes: Boxes, tmp_path: Path) -> None:
    task = one_task("debugging", tmp_path)
    files = workspace(task)
    tests = sorted((task.directory / "tests/files").rglob("test_*.py"))
    path = next(name for name in files if f"+++ b/{name}" in reference_diff(task))
    found = graded(
        boxes,
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
    honest = verdicts(boxes, task, {"reference": reference_diff(task)})["reference"]
    assert honest.passed
    assert honest.evidence.sealed == sealing(boxes)


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


@pytest.mark.soak
@pytest.mark.parametrize("source", ["debugging", "features"])
def test_ten_tasks_are_gated(boxes: Boxes, tmp_path: Path, source: str) -> None:
    gated(boxes, tmp_path, source)


@pytest.mark.soak
def test_tasks_in_node_are_gated(boxes: Boxes, tmp_path: Path) -> None:
    tasks = [
        task
        for split, count in ((Split.TRAIN, 6), (Split.DEV, 3))
        for task in make_tasks(open_source("debugging"), split, count, 5, tmp_path)
        if task.verifier["runner"] == "node"
    ]
    assert [task.family for task in tasks] == ["package:tolls", "package:meter"]
    for task in tasks:
        found = verdicts(boxes, task, solutions(task))
        assert found.keys() == {"patch", "other", "nothing"}
        assert found["nothing"].judgement is Judgement.FAIL
        for name in ("patch", "other"):
            assert found[name].passed, (name, found[name])
            assert found[name].evidence.sealed
