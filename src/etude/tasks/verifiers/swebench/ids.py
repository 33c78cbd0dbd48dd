"""Maps the test ids in rows of the SWE-bench dataset to the ids that test runners print. An id in a row may be
truncated, and may then stand for several tests."""

from __future__ import annotations

import re
from collections.abc import Collection

_METHOD = re.compile(r"(?P<name>\w+) \((?P<place>\w+(?:\.\w+)+)\)")
"""As unittest prints a test: `test_a (package.module.Class)`; since Python 3.11, with `.test_a` after the class."""


def is_cut(test: str) -> bool:
    """Many ids of SWE-bench were truncated inside their parameters, at a space or a line end."""
    return test.count("[") > test.count("]")


def is_shortened(test: str) -> bool:
    """Return whether a test id's parameter is a path that a log parser may have shortened to its last part."""
    return bool(re.search(r"\[/[^/\]]*\]$", test))


def may_mean(test: str, found: str) -> bool:
    """Return whether `test`, an id in a SWE-bench row, can stand for `found`, an id that the test runner prints."""
    if test == found:
        return True
    if is_cut(test):
        return found.startswith(test)
    if is_shortened(test):
        address, _, option = found.partition("[")
        return option.startswith("/") and test == f"{address}[/{option.removesuffix(']').rpartition('/')[2]}]"
    return False


def is_ambiguous(test: str) -> bool:
    """Return whether an id may stand for several ids of the runner, so that only a test run can resolve it."""
    return is_cut(test) or is_shortened(test)


def runner_ids(test: str, found: Collection[str]) -> tuple[str, ...]:
    """Return the runner's ids, among those `found`, that a row's id stands for; all of them must pass. If there are
    none, return the id itself, which then counts as a test that did not run."""
    if test in found or not is_ambiguous(test):
        return (test,)
    return tuple(sorted(name for name in found if may_mean(test, name))) or (test,)


def dotted(test: str) -> str | None:
    """Return a unittest id in the form that unittest's loader accepts, or None if it is not one of unittest's."""
    if method := _METHOD.fullmatch(test):
        place = method["place"].removesuffix(f".{method['name']}")
        return f"{place}.{method['name']}"
    return test if re.fullmatch(r"\w+(\.\w+){2,}", test) else None
