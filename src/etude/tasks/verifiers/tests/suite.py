"""A hidden test suite as a task stores it: how to run it, its files, and the expected outcomes.

task.toml  [metadata.etude.verifier]  type = "tests", runner, and the other fields of `SuiteConfig`
tests/files/...                       placed over the workspace when a change is graded
tests/expected.json                   fail_to_pass, pass_to_pass, may_skip: ids, as the runner itself prints them
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.directory import read_files
from etude.tasks.task import Task, TaskError
from etude.tasks.verifiers.inputs import read_json, read_table

FILES = "tests/files"
EXPECTED = "tests/expected.json"
Runner = Literal["pytest", "unittest", "node"]


class SuiteConfig(BaseModel):
    """The settings in [metadata.etude.verifier] of a task with `type = "tests"`; unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    runner: Runner
    python: str = Field("python3", min_length=1)
    """The image's interpreter: a name searched for on PATH, or an absolute path outside the workspace."""
    node: str = Field("node", min_length=1)
    pytest: Literal["image", "brought"] = "image"
    """Which pytest to run: "image" uses the one in the image, "brought" adds the grader's to an image that has none."""
    path: list[str] = ["."]
    """Folders of the workspace that are put on Python's path."""
    arguments: list[str] = []
    """Additional command line arguments for the runner (pytest only)."""
    env: dict[str, str] = {}
    """Environment variables that override the image's and the grader's."""
    seconds: float = Field(60.0, gt=0)
    """CPU time limit of all tests together, in seconds. The wall-clock limit is a multiple of it, as a safety net."""
    memory_mb: int = Field(1024, ge=64)
    disk_mb: int = Field(256, ge=16)
    processes: int = Field(128, ge=8)


class _Expected(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    fail_to_pass: list[str]
    pass_to_pass: list[str] = []
    may_skip: list[str] = []


@dataclass(frozen=True, slots=True)
class Suite:
    config: SuiteConfig
    files: Mapping[str, bytes]
    """Files to place over the workspace, by their paths in it."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    may_skip: frozenset[str] = frozenset()
    """Tests of pass_to_pass that may also be skipped or end as xfailed (an expected failure)."""

    @property
    def expected(self) -> tuple[str, ...]:
        return self.fail_to_pass + self.pass_to_pass

    def with_sources(self, sources: Mapping[str, bytes]) -> Suite:
        """Return a suite where each file whose path is in `sources` has the contents from there. Other paths in
        `sources` are ignored."""
        return replace(self, files={path: sources.get(path, data) for path, data in self.files.items()})


def read_suite(task: Task) -> Suite:
    """Read the suite of a task. Raises a TaskError that names the file, the field and what was expected."""
    config = read_table(task, SuiteConfig)
    path = task.directory / EXPECTED
    expected = read_json(path, _Expected)
    lists = {"fail_to_pass": expected.fail_to_pass, "pass_to_pass": expected.pass_to_pass}
    seen: set[str] = set()
    for field, ids in lists.items():
        for test in ids:
            if not test or test in seen:
                raise TaskError(f"{path}: {field}: expected non-empty, different ids, found {test!r} empty or again")
            seen.add(test)
    if not expected.fail_to_pass:
        raise TaskError(f"{path}: fail_to_pass: expected at least one id: without one, doing nothing would pass")
    for test in expected.may_skip:
        if test not in expected.pass_to_pass:
            raise TaskError(f"{path}: may_skip: expected ids of pass_to_pass, found {test!r}")
    if "PYTHONPATH" in config.env:
        place = f"{task.directory / 'task.toml'}: metadata.etude.verifier.env"
        raise TaskError(f"{place}: expected no PYTHONPATH (it would take effect before the runner starts): use `path`")
    hidden = read_files(task.directory, FILES) if (task.directory / FILES).is_dir() else {}
    return Suite(
        config,
        hidden,
        tuple(expected.fail_to_pass),
        tuple(expected.pass_to_pass),
        frozenset(expected.may_skip),
    )


def test_files(suite: Suite) -> frozenset[str]:
    """Return the files that may contain the required tests. A dotted id (of unittest) does not show where the file's
    name ends, so each of its beginnings counts."""
    if suite.config.runner != "unittest":
        mark = "::" if suite.config.runner == "pytest" else " > "
        return frozenset(test.partition(mark)[0] for test in suite.expected)
    modules = {"/".join(test.split(".")[:end]) for test in suite.expected for end in range(1, test.count("."))}
    folders = ["", *(folder.strip("/") + "/" for folder in suite.config.path if folder not in (".", ""))]
    return frozenset(f"{folder}{module}.py" for folder in folders for module in modules)


def is_in_the_way(path: str, files: Iterable[str]) -> bool:
    """Return whether `path` is a hidden file, or lies above or below one and could keep it from being written."""
    return any(path == file or file.startswith(f"{path}/") or path.startswith(f"{file}/") for file in files)


def suite_files(
    files: Mapping[str, bytes],
    fail_to_pass: Collection[str],
    pass_to_pass: Collection[str] = (),
    may_skip: Collection[str] = (),
) -> dict[str, bytes]:
    """Return a hidden suite's files for `write_task`. `task.verifier` must be {"type": "tests", "runner": ...}."""
    expected = {"fail_to_pass": sorted(fail_to_pass), "pass_to_pass": sorted(pass_to_pass)}
    if may_skip:
        expected["may_skip"] = sorted(may_skip)
    listed = json.dumps(expected, indent=1, ensure_ascii=False) + "\n"
    return {**{f"{FILES}/{path}": data for path, data in files.items()}, EXPECTED: listed.encode()}
