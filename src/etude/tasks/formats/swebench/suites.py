"""Which runner an instance's tests are for, and its ids as that runner says them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.tasks.formats.swebench.instance import Instance, UnsupportedRow
from etude.tasks.verifiers.swebench import END, PARSERS, START, dotted


@dataclass(frozen=True, slots=True)
class Plan:
    verifier: dict[str, Any]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    """Of pass_to_pass: no ids of the runner, but what a reader of logs took for one."""
    script: str = ""
    """Runs the tests, where no runner of ours can."""


ROOM = {"seconds": 1800.0, "memory_mb": 4096, "disk_mb": 2048, "processes": 512}
"""Rows say nothing of what their tests need: enough for most, until the gate has seen them."""
_NAMES: dict[str, Callable[[str], str | None]] = {
    "pytest": lambda test: test if ".py::" in test else None,
    "node": lambda test: test if re.search(r"\.[cm]?[jt]s > ", test) else None,
    "unittest": dotted,
}
"""What each runner calls the test, or None if the id is none of its own."""
_OWN_RUNNERS = frozenset(("django/django", "sympy/sympy"))
"""Python all the same, but only their own script sets the tests up."""


def plan_of(instance: Instance) -> Plan:
    """UnsupportedRow if neither a runner of ours nor the row's own script can run the tests."""
    if instance.repo.lower() not in _OWN_RUNNERS:
        for runner, name in _NAMES.items():
            if all(map(name, instance.fail_to_pass)):
                return _named(instance, runner, name)
    if (script := _script(instance)) and instance.log_parser in PARSERS:
        verifier = {"type": "eval-script", "log_parser": instance.log_parser}
        return Plan(verifier, instance.fail_to_pass, instance.pass_to_pass, script=script)
    unread = f"its log is read by {instance.log_parser!r}, which is not known here"
    raise UnsupportedRow(
        f"{instance.place}: FAIL_TO_PASS: {instance.fail_to_pass[0]!r} is no id of pytest, unittest or node, and "
        f"{unread if script else 'it has no eval_script, as rows of version 5 do'}"
    )


def _named(instance: Instance, runner: str, name: Callable[[str], str | None]) -> Plan:
    fails, passes = ([(test, name(test)) for test in tests] for tests in (instance.fail_to_pass, instance.pass_to_pass))
    return Plan(
        verifier={"type": "swebench", "runner": runner, **ROOM},
        fail_to_pass=tuple(known for _, known in fails if known),
        pass_to_pass=tuple(dict.fromkeys(known for _, known in passes if known)),
        passed_over=tuple(test for test, known in passes if not known),
    )


def _script(instance: Instance) -> str:
    """The row's own, or one around its test command."""
    if instance.eval_script or not instance.test_command:
        return instance.eval_script
    lines = [f"cd {shlex.quote(instance.workdir)}", f"echo '{START}'", instance.test_command, f"echo '{END}'", ""]
    return "\n".join(["#!/bin/bash", *lines])
