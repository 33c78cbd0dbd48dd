"""Finds values that remain visible in the box after expected values were removed from assertions."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence

from etude.tasks.verifiers.tests.bindings import module_scope
from etude.tasks.verifiers.tests.constants import Evaluator, NotConstant

_STEPS, _STEPS_PER_BYTE = 1_000, 16
"""Limit on the work of evaluating a file's constant expressions, in an Evaluator's steps: a number per file, and one
for each of the file's bytes."""


def visible_values(
    compared: ast.expr, rounds: Sequence[Mapping[str, object]], values: Sequence[object]
) -> frozenset[str]:
    """Return the reprs of those expected `values` that also occur in `compared`, the expression that a test compares
    with them. They are easy to guess, because code may return a part of its input. `values` and `rounds` (the known
    names) have one entry per loop iteration or parametrised row."""
    found = zip(rounds, values, strict=True)
    return frozenset(
        repr(value)
        for names, value in found
        if any(reveals(part, value) for _, part in _known(compared, names, Evaluator()))
    )


def computed_values(source: bytes) -> Iterator[object]:
    """Yield the values of a Python file's constant expressions, such as 43 for `40 + 3`. Their number and sizes grow no
    faster than the file: expressions that take more than its share of steps are left out."""
    evaluator = Evaluator(_STEPS + _STEPS_PER_BYTE * len(source))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node, value in _known(tree, module_scope(tree, evaluator).values, evaluator):
        if not isinstance(node, ast.Name):  # A name's value was yielded where it is assigned.
            yield list(value) if isinstance(value, range | Iterator) else value


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


def _known(whole: ast.AST, names: Mapping[str, object], evaluator: Evaluator) -> Iterator[tuple[ast.expr, object]]:
    """Yield (expression, value) for the whole expression or, if it cannot be evaluated, for the largest of its parts
    that can."""
    waiting = [whole]
    while waiting:
        node = waiting.pop()
        try:
            if isinstance(node, ast.expr):
                yield node, evaluator.evaluate(node, names)
                continue
        except NotConstant:
            pass
        waiting += ast.iter_child_nodes(node)
