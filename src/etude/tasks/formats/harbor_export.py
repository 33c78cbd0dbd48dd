"""Makes what other readers of Harbor tasks need to grade an Étude task: a tests/test.sh, and the programs it runs.

The exported grading is open: tests and code under test share a box. Verifiers that need more (separate boxes, mutants,
a builder, checks of the source) have no such script, and their tasks are not exported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import resources

from etude.tasks.directory import REFERENCE_DIFF, WORKDIR
from etude.tasks.harbor import parse_harbor
from etude.tasks.task import Task, TaskError
from etude.tasks.verifiers.tests import pytest_files, read_suite

_BOX = resources.files("etude.tasks.box")
_TEST = """#!/bin/sh
# Open: runs in one box with the code that it tests, which could write /logs/verifier/reward.txt itself.
WORKDIR="${{WORKDIR:-{workdir}}}" exec python3 "$(dirname "$0")/{program}"
"""
_SOLVE = """#!/bin/sh
cd {workdir} && patch -p1 < "$(dirname "$0")/patch.diff"
"""
_PACKAGES = "packages"


def export_files(task: Task) -> dict[str, bytes]:
    """Return the files that let other readers of Harbor tasks grade this one; none if it has a test.sh already. Raises
    TaskError if its verifier cannot be exported."""
    if any(task.directory.glob("tests/test.sh")) or any(task.directory.glob("steps/*/tests/test.sh")):
        return {}
    kind = task.verifier.get("type") or ("cases" if (task.directory / "tests/cases.json").is_file() else "")
    if kind not in _EXPORTERS:
        place = task.directory / "tests/test.sh"
        why = f"the verifier {kind!r} grades only here" if kind else "others cannot grade this task"
        raise TaskError(f"{place}: expected a file: {why} (made for: {', '.join(sorted(_EXPORTERS))})")
    given = _EXPORTERS[kind](task)
    files = {f"tests/{name}": data for name, data in given.items()}
    if (task.directory / REFERENCE_DIFF).is_file() and not (task.directory / "solution/solve.sh").exists():
        files["solution/solve.sh"] = _SOLVE.format(workdir=_workdir(task)).encode()
    return files


def _of_cases(task: Task) -> dict[str, bytes]:
    return {**_test(task, "verify.py"), **_programs("run_cases.py")}


def _of_tests(task: Task) -> dict[str, bytes]:
    suite = read_suite(task)
    config, brought = suite.config, suite.config.pytest == "brought"
    script, command = "run_tests.py", [config.python, "-s", "-B", "-c"]
    if config.runner == "node":
        script, command = "run_tests.mjs", [config.node, "--input-type=module", "-e"]
    job = {
        "runner": config.runner,
        "path": config.path,
        "packages": [f"/tests/{_PACKAGES}"] if brought else [],
        "arguments": config.arguments,
        "ids": sorted(suite.expected),
        "keeper": "",
        "order": None,
    }
    settings = {"script": script, "command": command, "env": config.env, "job": job}
    packages = {f"{_PACKAGES}/{path}": data for path, data in pytest_files().items()} if brought else {}
    return {**_test(task, "open_suite.py"), **_programs(script), **packages, "open.json": _json(settings)}


def _of_script(task: Task) -> dict[str, bytes]:
    settings = {"command": task.verifier["command"], "seconds": 3.0 * float(task.verifier.get("seconds", 30))}
    return {**_test(task, "open_products.py"), "open.json": _json(settings)}


_EXPORTERS: Mapping[str, Callable[[Task], dict[str, bytes]]] = {
    "cases": _of_cases,
    "script": _of_script,
    "tests": _of_tests,
}


def _test(task: Task, program: str) -> dict[str, bytes]:
    return {"test.sh": _TEST.format(program=program, workdir=_workdir(task)).encode(), **_programs(program)}


def _json(settings: Mapping[str, object]) -> bytes:
    return (json.dumps(settings, indent=1) + "\n").encode()


def _programs(*names: str) -> dict[str, bytes]:
    return {name: (_BOX / name).read_bytes() for name in names}


def _workdir(task: Task) -> str:
    return parse_harbor(task.config, task.directory / "task.toml").environment.workdir or WORKDIR
