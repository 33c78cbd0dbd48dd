"""Finds values that remain visible in the box after expected values were removed from assertions."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from etude.tasks.verifiers.tests.bindings import module_scope
from etude.tasks.verifiers.tests.constants import NotConstant, evaluate


def visible_values(
    compared: ast.expr, rounds: Sequence[Mapping[str, object]], values: Sequence[object]
) -> frozenset[str]:
    """Return reprs of values that the compared expression contains too: code may return a part of its input."""
    found = zip(rounds, values, strict=True)
    return frozenset(
        repr(value) for names, value in found if any(reveals(part, value) for part in _known(compared, names))
    )


def computed_values(source: bytes) -> Iterator[object]:
    """Yield the values of a Python file's constant expressions, such as 43 for `40 + 3`."""
    try:
        tree = ast.parse(source)
        for value in _known(tree, module_scope(tree).values):
            yield list(value) if isinstance(value, range) else value
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


def reveals(visible: object, value: object) -> bool:
    """Return whether `visible` is or contains `value`. Values that code often returns, such as 0, are no secret."""
    if value in (None, 0, 1, -1) or (isinstance(value, str | bytes | list | tuple | dict | set) and not value):
        return False
    items = list(value) if isinstance(value, list | tuple) else None
    for part in _parts(visible):
        if bool(part == value) or (items is not None and isinstance(part, list | tuple) and list(part) == items):
            return True
    return False


def _parts(whole: object) -> Iterator[object]:
    """Yield an object and everything inside it, at any depth, each object once."""
    waiting = [whole]
    # Objects by id. They are kept alive, because a range creates its numbers anew, and a freed id may be reused.
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
    """Yield the expression's value or, if it cannot be evaluated, those of its largest parts that can be."""
    try:
        if isinstance(node, ast.expr):
            yield evaluate(node, names)
            return
    except NotConstant:
        pass
    for part in ast.iter_child_nodes(node):
        yield from _known(part, names)
