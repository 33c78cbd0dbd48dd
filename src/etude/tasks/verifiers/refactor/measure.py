"""Measures how much code there is to read in a library, from its syntax trees alone.

Size is the number of nodes in all trees. Long strings and numbers count as several nodes; layout, comments and the
length of names do not count. Moving code into a function that is called once always raises the size.

Duplication compares simple statements and the heads of compound ones, ignoring names, so writing the same code more
tersely does not lower it. The complexity of a function counts the decisions of all functions that it may call, so
splitting a function does not make it simpler.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from etude.tasks.verifiers.language import stored_names

SMALLEST = 6
"""Smallest statement, in syntax tree nodes, whose repetition counts. Smaller statements are often equal by chance."""
LETTERS = 6
"""Number of characters of a string or number that count as one additional node."""
_SIMPLE = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.Raise, ast.Assert, ast.Delete
)  # fmt: skip
_HEADS = ("test", "target", "iter", "items", "subject", "type", "pattern", "guard", "decorator_list", "bases")
_DECISIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case, ast.Assert)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_MOST_CALLS_FOLLOWED = 2_000_000


@dataclass(frozen=True, slots=True)
class Measures:
    size: int
    duplicated: int
    """Number of syntax tree nodes in repeated statements, without the first occurrence of each."""
    complexity: int
    """Largest number of decisions (branches, loops, `and`, `or`...) in a public function and all functions that it may
    call together, plus the decisions outside functions."""
    densest: int
    """Number of syntax tree nodes in the largest statement. Of a compound one, only the head counts."""


def measure(sources: Mapping[str, str]) -> Measures:
    """Measure modules, given as sources by path. Raises SyntaxError or ValueError if one cannot be parsed."""
    trees = [_without_docstrings(ast.parse(source)) for _, source in sorted(sources.items())]
    units = [unit for tree in trees for unit in _units(tree)]
    sizes = [sum(map(_weight, unit)) for unit in units]
    counts = Counter((tuple(map(_nameless_dump, unit)), size) for unit, size in zip(units, sizes, strict=True))
    return Measures(
        size=sum(map(_weight, trees)),
        duplicated=sum((count - 1) * size for (_, size), count in counts.items() if size >= SMALLEST),
        complexity=_complexity(trees),
        densest=max(sizes, default=0),
    )


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove docstrings and all other constants that stand alone as statements, since they do nothing."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
            node.body = kept  # type: ignore[attr-defined]
    return tree


def _weight(tree: ast.AST) -> int:
    total = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr_context):
            total += 1
        if isinstance(node, ast.Constant):
            total += len(str(node.value)) // LETTERS
    return total


def _units(tree: ast.AST) -> Iterator[list[ast.AST]]:
    """Yield the parts of a tree that are compared to find repetition: each simple statement, and the head of each
    compound one. Each part is compared alone, so reordering statements hides no duplicate."""
    for node in ast.walk(tree):
        if isinstance(node, _SIMPLE):
            yield [node]
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            parts = [getattr(node, name, None) for name in _HEADS]
            flat = [part for found in parts for part in (found if isinstance(found, list) else [found])]
            if head := [part for part in flat if isinstance(part, ast.AST)]:
                yield head


def _nameless_dump(node: ast.AST) -> str:
    """Return a string that is equal for trees that differ only in the names of variables, parameters, functions and
    classes. Names of attributes count."""
    shape = [type(node).__name__]
    for name, value in ast.iter_fields(node):
        if name == "ctx" or (name in ("id", "arg", "name") and isinstance(value, str)):
            continue
        for item in value if isinstance(value, list) else [value]:
            shape.append(_nameless_dump(item) if isinstance(item, ast.AST) else repr(item))
    return f"({' '.join(shape)})"


def _complexity(trees: list[ast.Module]) -> int:
    functions: dict[str, list[_Function]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                functions.setdefault(node.name, []).append(node)
    decided = {name: sum(map(_decisions, nodes)) for name, nodes in functions.items()}
    # Decisions outside named functions, such as module-level code: any function may depend on them, so they always
    # count.
    outside = sum(map(_decisions, trees)) - sum(decided.values())
    calls = {name: set().union(*map(_names, nodes)) & functions.keys() for name, nodes in functions.items()}
    public = [name for name in functions if not name.startswith("_")]
    if len(public) * sum(map(len, calls.values())) > _MOST_CALLS_FOLLOWED:
        raise ValueError("too many functions call each other")
    most = max((_reached(name, decided, calls) for name in public), default=0)
    return most + max(0, outside)


def _reached(start: str, decided: Mapping[str, int], calls: Mapping[str, set[str]]) -> int:
    seen = {start}
    waiting = [start]
    while waiting:
        new = calls[waiting.pop()] - seen
        seen |= new
        waiting += new
    return sum(decided[name] for name in seen)


def _decisions(tree: ast.AST) -> int:
    nodes = list(ast.walk(tree))
    logic = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return logic + sum(isinstance(node, _DECISIONS) for node in nodes)


def _names(function: _Function) -> set[str]:
    """Return the names that a function mentions, attributes included, without the variables that it assigns itself."""
    attributes = {part.attr for part in ast.walk(function) if isinstance(part, ast.Attribute)}
    names = {part.id for part in ast.walk(function) if isinstance(part, ast.Name)}
    return names - stored_names(function) | attributes
