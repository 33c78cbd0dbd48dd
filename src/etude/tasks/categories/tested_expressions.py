"""Expressions that a test checks: the assertions that hold them, and the values that their variables stand for."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping

ASKED_FIRST = ("assertEqual", "assertIsNone", "assertTrue", "assertFalse")
"""Assertions whose first argument is the expression that the test checks."""


def assigned(body: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """Return the expressions that statements assign to single names."""
    return {
        node.targets[0].id: node.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def free_names(node: ast.expr) -> set[str]:
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    bound = {part.id for part in names if isinstance(part.ctx, ast.Store)}
    bound |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    return {part.id for part in names} - bound


def filled(expression: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    """Return a copy of an expression with the values of its free names in their place. A name within its own value, as
    in `text = text.strip()`, stays."""
    free = free_names(expression)

    class Filler(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            if node.id not in values or node.id not in free:
                return node
            return filled(values[node.id], {name: value for name, value in values.items() if name != node.id})

    made: ast.expr = Filler().visit(copy.deepcopy(expression))
    return made
