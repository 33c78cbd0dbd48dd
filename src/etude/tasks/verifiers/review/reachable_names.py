"""Finds the names through which a line of a library can be reached: the function that contains it, and everything that
uses this function directly or indirectly.

Names are compared as written, without resolving them. So the result may contain too many names, but never too few.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from etude.tasks.verifiers.language import names_in, stored_names

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def names_leading_to(files: Mapping[str, str], path: str, first: int, last: int) -> frozenset[str]:
    """Return the names through which these lines can be reached; none if they belong to no definition."""
    found = _names_at(ast.parse(files.get(path, "")), first, last)
    uses = [pair for name, text in files.items() if name.endswith(".py") for pair in _uses(ast.parse(text))]
    while more := {name for name, named in uses if name not in found and named & found}:
        found |= more
    return frozenset(found)


def _names_at(tree: ast.Module, first: int, last: int) -> set[str]:
    """Return the innermost definition at these lines, or the names that module-level statements assign there."""
    inside = [name for name, node in _defined(tree) if _begins(node) <= last and first <= (node.end_lineno or 0)]
    if inside:
        return {inside[-1]}
    there = [node for node in tree.body if node.lineno <= last and first <= (node.end_lineno or 0)]
    return {name for node in there for name in stored_names(node)}


def _uses(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Yield each function, class and module-level variable with the names that it mentions."""
    for name, node in _defined(tree):
        yield name, names_in(node)
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            named = names_in(statement)
            yield from ((name, named) for name in stored_names(statement))


def _defined(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, _Definition]]:
    """Yield functions and classes, outer ones first. Special methods such as `__init__` get their class's name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition):
            name = owner if owner and node.name.startswith("__") else node.name
            yield name, node
            yield from _defined(node, node.name if isinstance(node, ast.ClassDef) else owner)
        else:
            yield from _defined(node, owner)


def _begins(node: _Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
