"""Maps the test ids in SWE-bench rows to those of the runners here: ids that were cut off, and which tests an id
stands for."""

from __future__ import annotations

import re
from collections.abc import Collection

_METHOD = re.compile(r"(?P<name>\w+) \((?P<place>\w+(?:\.\w+)+)\)")
"""A test as unittest prints it: test_a (package.module.Class), or since Python 3.11 (package.module.Class.test_a)."""


def is_cut(test: str) -> bool:
    """Whether the id was cut off inside its parameters. Many are, at a blank or the end of a line."""
    return test.count("[") > test.count("]")


def is_shortened(test: str) -> bool:
    """Whether its parameter was a path, of which some log parsers keep only the last part."""
    return bool(re.search(r"\[/[^/\]]*\]$", test))


def stands_for(test: str, found: str) -> bool:
    """Whether a row's id `test` can mean the runner's id `found`."""
    if test == found:
        return True
    if is_cut(test):
        return found.startswith(test)
    if is_shortened(test):
        address, _, option = found.partition("[")
        return option.startswith("/") and test == f"{address}[/{option.removesuffix(']').rpartition('/')[2]}]"
    return False


def is_open(test: str) -> bool:
    """Whether only a run of the tests can show which ids this one stands for."""
    return is_cut(test) or is_shortened(test)


def resolved(test: str, found: Collection[str]) -> tuple[str, ...]:
    """All runner ids that an id stands for, each of which must pass. If none is found, the id itself, which then
    counts as a test that did not run."""
    if test in found or not is_open(test):
        return (test,)
    return tuple(sorted(name for name in found if stands_for(test, name))) or (test,)


def dotted(test: str) -> str | None:
    """A unittest id in the dotted form that its loader accepts; None if it is not a unittest id."""
    if method := _METHOD.fullmatch(test):
        place = method["place"].removesuffix(f".{method['name']}")
        return f"{place}.{method['name']}"
    return test if re.fullmatch(r"\w+(\.\w+){2,}", test) else None
