"""How rows name tests, and how the runners here do: what is cut off, and what stands for what."""

from __future__ import annotations

import re
from collections.abc import Collection

_METHOD = re.compile(r"(?P<name>\w+) \((?P<place>\w+(?:\.\w+)+)\)")
"""As unittest prints one: test_a (package.module.Class), or since Python 3.11 (package.module.Class.test_a)."""


def is_cut(test: str) -> bool:
    """Was the id cut off in the middle of its parameters? Many are, at a blank or at the end of a line."""
    return test.count("[") > test.count("]")


def is_shortened(test: str) -> bool:
    """Were its parameters a path, of which some readers of logs keep the last part alone?"""
    return bool(re.search(r"\[/[^/\]]*\]$", test))


def stands_for(test: str, found: str) -> bool:
    """Is the test that a runner calls `found` one that a row calls `test`?"""
    if test == found:
        return True
    if is_cut(test):
        return found.startswith(test)
    if is_shortened(test):
        address, _, option = found.partition("[")
        return option.startswith("/") and test == f"{address}[/{option.removesuffix(']').rpartition('/')[2]}]"
    return False


def is_open(test: str) -> bool:
    """Does only a run of the tests say what it stands for?"""
    return is_cut(test) or is_shortened(test)


def resolved(test: str, found: Collection[str]) -> tuple[str, ...]:
    """All that it stands for: each of them must pass. None found: the id itself, which nothing will be called."""
    if test in found or not is_open(test):
        return (test,)
    return tuple(sorted(name for name in found if stands_for(test, name))) or (test,)


def dotted(test: str) -> str | None:
    """A unittest id as its loader takes it, or None if this is none."""
    if method := _METHOD.fullmatch(test):
        place = method["place"].removesuffix(f".{method['name']}")
        return f"{place}.{method['name']}"
    return test if re.fullmatch(r"\w+(\.\w+){2,}", test) else None
