"""Maps the test ids in SWE-bench rows to the runners' ids. Ids in rows may have been cut off, and may then stand for
several tests."""

from __future__ import annotations

import re
from collections.abc import Collection

_METHOD = re.compile(r"(?P<name>\w+) \((?P<place>\w+(?:\.\w+)+)\)")
"""Matches a test as unittest prints it: test_a (package.module.Class), or since Python 3.11
(package.module.Class.test_a)."""


def is_cut(test: str) -> bool:
    """Return whether the id was cut off inside its parameters. Many are, at a blank or the end of a line."""
    return test.count("[") > test.count("]")


def is_shortened(test: str) -> bool:
    """Return whether the id's parameter was a path, of which some log parsers keep only the last part."""
    return bool(re.search(r"\[/[^/\]]*\]$", test))


def may_mean(test: str, found: str) -> bool:
    """Return whether a row's id `test` can stand for the runner's id `found`."""
    if test == found:
        return True
    if is_cut(test):
        return found.startswith(test)
    if is_shortened(test):
        address, _, option = found.partition("[")
        return option.startswith("/") and test == f"{address}[/{option.removesuffix(']').rpartition('/')[2]}]"
    return False


def is_ambiguous(test: str) -> bool:
    """Return whether only a run of the tests can show which runner's ids this id stands for."""
    return is_cut(test) or is_shortened(test)


def runner_ids(test: str, found: Collection[str]) -> tuple[str, ...]:
    """Return all runner's ids that a row's id stands for, each of which must pass. If there is none among `found`,
    return the id itself, which then counts as a test that did not run."""
    if test in found or not is_ambiguous(test):
        return (test,)
    return tuple(sorted(name for name in found if may_mean(test, name))) or (test,)


def dotted(test: str) -> str | None:
    """Return a unittest id in the dotted form that its loader accepts, or None if it is not a unittest id."""
    if method := _METHOD.fullmatch(test):
        place = method["place"].removesuffix(f".{method['name']}")
        return f"{place}.{method['name']}"
    return test if re.fullmatch(r"\w+(\.\w+){2,}", test) else None
