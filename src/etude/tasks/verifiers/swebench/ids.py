"""Maps the test ids in rows of the SWE-bench dataset to the ids that test runners print. An id in a row may be
truncated, and may then stand for several tests."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection
from functools import cached_property
from itertools import takewhile

_METHOD = re.compile(r"(?P<name>\w+) \((?P<place>\w+(?:\.\w+)+)\)")
"""Matches a test id as unittest prints it: `test_a (package.module.Class)`, since Python 3.11 with `.test_a` after
`Class`."""


def is_cut(test: str) -> bool:
    """Return whether a SWE-bench row's test id was truncated inside its parameters, as many were at a space or line
    end."""
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
    return is_shortened(test) and test == _shortened(found)


def _shortened(found: str) -> str:
    """Return a runner's id with a path as its parameter shortened to the path's last part; other ids give ""."""
    address, _, option = found.partition("[")
    return f"{address}[/{option.removesuffix(']').rpartition('/')[2]}]" if option.startswith("/") else ""


def is_ambiguous(test: str) -> bool:
    """Return whether a SWE-bench row's test id may stand for several tests. Only a test run shows for which."""
    return is_cut(test) or is_shortened(test)


def runner_ids(test: str, found: Collection[str]) -> tuple[str, ...]:
    """Return the ids in `found`, printed by a test runner, that `test`, an id in a SWE-bench row, stands for. All these
    tests must pass. If there are none, return `test` itself, which then counts as a test that did not run."""
    return RunnerIds(found).meant_by(test)


class RunnerIds:
    """The ids that a runner printed. There may be very many, since the code under test can print any, so looking one up
    does not go through all of them."""

    def __init__(self, found: Collection[str]) -> None:
        self._found = found

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._found)

    @cached_property
    def _by_shortened(self) -> dict[str, list[str]]:
        by_shortened = defaultdict(list)
        for name in self._sorted:
            by_shortened[_shortened(name)].append(name)
        return dict(by_shortened)

    def meant_by(self, test: str) -> tuple[str, ...]:
        """Return the printed ids that `test`, an id in a SWE-bench row, stands for; `test` itself if there are none."""
        if test in self._found or not is_ambiguous(test):
            return (test,)
        if is_cut(test):
            names, first = self._sorted, bisect_left(self._sorted, test)
            after = (names[place] for place in range(first, len(names)))
            return tuple(takewhile(lambda name: name.startswith(test), after)) or (test,)
        return tuple(self._by_shortened.get(test, ())) or (test,)


def dotted(test: str) -> str | None:
    """Return a unittest id in the form that unittest's loader accepts, or None if it is not one of unittest's."""
    if method := _METHOD.fullmatch(test):
        place = method["place"].removesuffix(f".{method['name']}")
        return f"{place}.{method['name']}"
    return test if re.fullmatch(r"\w+(\.\w+){2,}", test) else None
