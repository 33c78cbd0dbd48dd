"""Answers that stand in the box all the same: a test whose answer is taken out still says what it gives."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from etude.tasks.verifiers.tests.constants import NotConstant, evaluate


def given_in(compared: ast.expr, rounds: Sequence[Mapping[str, object]], values: Sequence[object]) -> frozenset[str]:
    """Of the values, in the words of `repr`, those that are also given to what answers, in their own round: it may
    answer with the third of what it was given, and ask nobody."""
    found = zip(rounds, values, strict=True)
    return frozenset(
        repr(value) for names, value in found if any(tells(part, value) for part in _known(compared, names))
    )


def tells(stays: object, value: object) -> bool:
    """Is it there to be found? What code answers by default is no secret anyhow."""
    if value in (None, 0, 1, -1) or (isinstance(value, str | bytes | list | tuple | dict | set) and not value):
        return False
    items = list(value) if isinstance(value, list | tuple) else None
    for part in _parts(stays):
        if bool(part == value) or (items is not None and isinstance(part, list | tuple) and list(part) == items):
            return True
    return False


def _parts(whole: object) -> Iterator[object]:
    """It and all that is in it, at any depth; what is there many times is looked into once."""
    waiting = [whole]
    # By identity, and held: a range makes its numbers anew, and one that is gone leaves its id to another.
    seen: dict[int, object] = {}
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        yield part
        if isinstance(part, Collection) and not isinstance(part, str | bytes):
            waiting += part
        if isinstance(part, Mapping):
            waiting += part.values()


def _known(node: ast.AST, names: Mapping[str, object]) -> Iterator[object]:
    """Of the outermost parts of an expression that have a value, the values."""
    try:
        if isinstance(node, ast.expr):
            yield evaluate(node, names)
            return
    except NotConstant:
        pass
    for part in ast.iter_child_nodes(node):
        yield from _known(part, names)
