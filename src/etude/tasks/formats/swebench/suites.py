"""Chooses the runner for an instance's tests, and translates its test ids to the runner's ids."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.tasks.formats.swebench.instance import Instance, UnsupportedRow
from etude.tasks.verifiers.swebench import END, PARSERS, START, dotted


@dataclass(frozen=True, slots=True)
class TestPlan:
    verifier: dict[str, Any]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    """Ids in the row that are not ids of tests, but log lines that a parser took for tests."""
    script: str = ""
    """Shell script that runs the tests; empty if one of Étude's runners does."""


DEFAULT_LIMITS = {"seconds": 1800.0, "memory_mb": 4096, "disk_mb": 2048, "processes": 512}
"""Limits of a task's test run. They are wide, because rows do not say what their tests need. The gate, which runs the
tests before the task is used, tightens them to what it measured."""
_NAMES: dict[str, Callable[[str], str | None]] = {
    "pytest": lambda test: test if ".py::" in test else None,
    "node": lambda test: test if re.search(r"\.[cm]?[jt]s > ", test) else None,
    "unittest": dotted,
}
"""For each runner, a function that converts a row's test id to the runner's id. It returns None for an id that does not
have the runner's form."""
_OWN_RUNNERS = frozenset(("django/django", "sympy/sympy"))
"""Python projects whose tests only run with the project's own script."""


def plan_of(instance: Instance) -> TestPlan:
    """Choose how to run an instance's tests. Raises UnsupportedRow if neither Étude's runners nor the row's own script
    can."""
    if instance.repo.lower() not in _OWN_RUNNERS:
        for runner, name in _NAMES.items():
            if all(map(name, instance.fail_to_pass)):
                return _plan_for_runner(instance, runner, name)
    if (script := _script(instance)) and instance.log_parser in PARSERS:
        verifier = {"type": "eval-script", "log_parser": instance.log_parser}
        return TestPlan(verifier, instance.fail_to_pass, instance.pass_to_pass, script=script)
    unread = f"its log is read by {instance.log_parser!r}, which is not known here"
    raise UnsupportedRow(
        f"{instance.place}: FAIL_TO_PASS: {instance.fail_to_pass[0]!r} is not an id of pytest, unittest or node, and "
        f"{unread if script else 'it has no eval_script, as rows of version 5 do'}"
    )


def _plan_for_runner(instance: Instance, runner: str, name: Callable[[str], str | None]) -> TestPlan:
    fails, passes = ([(test, name(test)) for test in tests] for tests in (instance.fail_to_pass, instance.pass_to_pass))
    return TestPlan(
        verifier={"type": "swebench", "runner": runner, **DEFAULT_LIMITS},
        fail_to_pass=tuple(known for _, known in fails if known),
        pass_to_pass=tuple(dict.fromkeys(known for _, known in passes if known)),
        passed_over=tuple(test for test, known in passes if not known),
    )


def _script(instance: Instance) -> str:
    """Return the row's own evaluation script, or a script that runs its test command."""
    if instance.eval_script or not instance.test_command:
        return instance.eval_script
    lines = [f"cd {shlex.quote(instance.workdir)}", f"echo '{START}'", instance.test_command, f"echo '{END}'", ""]
    return "\n".join(["#!/bin/bash", *lines])
