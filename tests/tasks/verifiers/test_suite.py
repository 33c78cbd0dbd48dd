"""Hidden suites on disk: a malformed one is an error that names file, field and expectation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.tasks import Split, Task, TaskError, open_verifier, read_task, write_task
from etude.tasks.verifiers.tests import TestsVerifier, read_suite, suite_files
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.suite import SuiteConfig, test_files
from etude.tasks.verifiers.tests.verifier import steers_runner

from . import projects

files_with_tests = test_files  # pytest would take the function for a test of its own.
del test_files


def written(folder: Path, **verifier: Any) -> Task:
    return projects.project(folder / "task", "unittest", **verifier)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    task = projects.project(tmp_path / "task", "pytest", seconds=5, path=["src", "."], env={"A": "b"}, unknown="kept")
    suite = read_suite(task)
    assert suite.config.runner == "pytest"
    assert suite.config.seconds == 5
    assert suite.config.path == ["src", "."]
    assert set(suite.files) == {"tests/__init__.py", "tests/test_prices.py"}
    assert len(suite.fail_to_pass) == 2
    assert len(suite.pass_to_pass) == 5
    assert suite.may_skip == {"tests/test_prices.py::TestEdges::test_label_of_nothing"}
    assert task.verifier["unknown"] == "kept"
    assert isinstance(open_verifier(task), TestsVerifier)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("runner", "nose", "'pytest', 'unittest' or 'node'"),
        ("seconds", 0, "greater than 0"),
        ("seconds", "1", "number"),
        ("memory_mb", 1, "greater than or equal to 64"),
        ("arguments", "-x", "list"),
        ("env", {"A": 1}, "string"),
        ("env", {"PYTHONPATH": "/work"}, "use `path`"),
        ("python", "", "at least 1 character"),
        ("pytest", "mine", "'image' or 'brought'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, field: str, value: object, said: str) -> None:
    task = written(tmp_path, **{field: value})
    with pytest.raises(TaskError, match=f"task.toml: metadata.etude.verifier.*{field}") as caught:
        read_suite(task)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_runner_must_be_named(tmp_path: Path) -> None:
    task = written(tmp_path)
    del task.verifier["runner"]
    with pytest.raises(TaskError, match="runner: Field required"):
        read_suite(task)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("{", "expected JSON"),
        ("[]", "an object"),
        ("{}", "fail_to_pass: Field required"),
        ('{"fail_to_pass": []}', "fail_to_pass: expected at least one id"),
        ('{"fail_to_pass": [1]}', "fail_to_pass.0"),
        ('{"fail_to_pass": ["a", "a"]}', "different ids"),
        ('{"fail_to_pass": ["a"], "pass_to_pass": ["a"]}', "different ids"),
        ('{"fail_to_pass": ["a"], "pass_to_pas": []}', "pass_to_pas"),
        ('{"fail_to_pass": ["a"], "may_skip": ["a"]}', "may_skip: expected ids of pass_to_pass"),
    ],
)
def test_a_wrong_list_is_named(tmp_path: Path, expected: str, said: str) -> None:
    task = written(tmp_path)
    (task.directory / "tests/expected.json").write_text(expected)
    with pytest.raises(TaskError, match=r"expected\.json") as caught:
        read_suite(task)
    assert said in str(caught.value)


def test_a_suite_needs_its_list_but_no_files_of_its_own(tmp_path: Path) -> None:
    task = written(tmp_path)
    repository = {"environment/repo/tests/test_a.py": b"", "solution/patch.diff": b""}
    write_task(task, {**suite_files({}, ["tests.test_a.A.test_a"]), **repository})
    task = read_task(task.directory, {Split.TRAIN})
    assert read_suite(task).files == {}
    assert TestsVerifier(task).protects("tests/test_a.py")
    (task.directory / "tests/expected.json").unlink()
    with pytest.raises(TaskError, match=r"expected\.json: expected a file"):
        read_suite(task)


SURFACE = """
    tests/test_prices.py  tests  tests/test_prices.py/below  conftest.py  sitecustomize/__init__.py  a/usercustomize.py
    own.egg-info/entry_points.txt  a-1.dist-info/METADATA  node_modules/a/index.js  .venv/bin/python
"""


@pytest.mark.parametrize("path", SURFACE.split())
def test_the_test_surface_is_protected(tmp_path: Path, path: str) -> None:
    assert TestsVerifier(written(tmp_path)).protects(path)


@pytest.mark.parametrize("path", ["shop/prices.py", "src/_pytest/main.py", "contest.py", "venv.py", "unittest/case.py"])
def test_product_code_is_not(tmp_path: Path, path: str) -> None:
    assert not steers_runner(path)
    assert not TestsVerifier(written(tmp_path)).protects(path)


def test_ids_lead_to_files_and_back(tmp_path: Path) -> None:
    suite = read_suite(written(tmp_path, path=["src"]))
    assert {"tests/test_prices.py", "src/tests/test_prices.py"} <= files_with_tests(suite)
    ids = Ids(SuiteConfig(runner="unittest", path=["src"]))
    assert "tests.test_a.A.test_b" in ids.addresses("src/tests/test_a.py", ("A", "test_b"))
    assert ids.renamed("tests.test_a.A.test_b", "test_c") == "tests.test_a.A.test_c"
    ids = Ids(SuiteConfig(runner="pytest"))
    assert ids.renamed("a.py::A::test_b[x::y]", "test_c") == "a.py::A::test_c[x::y]"
    assert ids.address("a.py::test_b[x]") == "a.py::test_b"
    ids = Ids(SuiteConfig(runner="node"))
    assert ids.renamed("a.mjs > b [c] > d [e]", "f") == "a.mjs > b [c] > f"
