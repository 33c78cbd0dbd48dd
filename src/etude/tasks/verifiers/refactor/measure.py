"""How much there is to read in a library, worked out from its syntax trees alone.

Size counts the nodes of all trees: names, layout and comments weigh nothing, texts and numbers as
much as their length. To move
statements or an expression into a function that is called once always raises it: they are said as before, and so are a
definition, a call and what is handed over. To remove what is said twice lowers it.

Duplicated counts what is said more than once: simple statements and the heads of compound ones, with all names alike,
each time but the first. It does not fall when the same is said in fewer signs. The complexity of a function counts the
decisions of all functions that it may call, so that one is not simpler for being cut in pieces.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SMALLEST = 6
"""Nodes of a statement from which saying it again counts: smaller ones are alike by chance."""
LETTERS = 6
"""Of a text or a number that weigh as much as a node."""
_SIMPLE = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.Raise, ast.Assert, ast.Delete
)  # fmt: skip
_HEADS = ("test", "target", "iter", "items", "subject", "type", "pattern", "guard", "decorator_list", "bases")
_DECISIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case, ast.Assert)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Measures:
    size: int
    duplicated: int
    complexity: int
    """Of the public function that may decide most."""
    densest: int
    """Nodes of the largest simple statement or head."""


def measure(sources: Mapping[str, str]) -> Measures:
    """Of Python modules by their paths. SyntaxError or ValueError if one is none."""
    trees = [_without_docstrings(ast.parse(source)) for _, source in sorted(sources.items())]
    units = [unit for tree in trees for unit in _units(tree)]
    sizes = [sum(map(_weight, unit)) for unit in units]
    counts = Counter((tuple(map(_alike, unit)), size) for unit, size in zip(units, sizes, strict=True))
    return Measures(
        size=sum(map(_weight, trees)),
        duplicated=sum((count - 1) * size for (_, size), count in counts.items() if size >= SMALLEST),
        complexity=_complexity(trees),
        densest=max(sizes, default=0),
    )


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Nor other texts that stand for themselves: they do nothing."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _idle(part)]  # type: ignore[attr-defined]
    return tree


def _idle(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _weight(tree: ast.AST) -> int:
    total = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr_context):
            total += 1
        if isinstance(node, ast.Constant):
            total += len(str(node.value)) // LETTERS
    return total


def _units(tree: ast.AST) -> Iterator[list[ast.AST]]:
    """Simple statements, and what stands before the colon of others. However statements are moved, they stay whole."""
    for node in ast.walk(tree):
        if isinstance(node, _SIMPLE):
            yield [node]
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            parts = [getattr(node, name, None) for name in _HEADS]
            flat = [part for found in parts for part in (found if isinstance(found, list) else [found])]
            if head := [part for part in flat if isinstance(part, ast.AST)]:
                yield head


def _alike(node: ast.AST) -> str:
    """Equal for trees that differ in names only."""
    shape = [type(node).__name__]
    for name, value in ast.iter_fields(node):
        if name == "ctx" or (name in ("id", "arg", "name") and isinstance(value, str)):
            continue
        for item in value if isinstance(value, list) else [value]:
            shape.append(_alike(item) if isinstance(item, ast.AST) else repr(item))
    return f"({' '.join(shape)})"


def _complexity(trees: list[ast.Module]) -> int:
    functions: dict[str, list[_Function]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                functions.setdefault(node.name, []).append(node)
    decided = {name: sum(map(_decisions, nodes)) for name, nodes in functions.items()}
    # Functions without a name of their own, say: anyone may call them.
    outside = sum(map(_decisions, trees)) - sum(decided.values())
    calls = {name: set().union(*map(_names, nodes)) & functions.keys() for name, nodes in functions.items()}
    most = max((_reached(name, decided, calls) for name in functions if not name.startswith("_")), default=0)
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
    """What it mentions and does not itself assign."""
    names = [part for part in ast.walk(function) if isinstance(part, ast.Name)]
    own = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return {name.id for name in names} - own | {
        part.attr for part in ast.walk(function) if isinstance(part, ast.Attribute)
    }
