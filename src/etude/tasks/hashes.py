"""Fingerprints of functions. They are equal for functions that differ only in names, strings, comments and layout.

A fingerprint has two hashes: the shape ignores numbers, the instance includes them. No instance occurs both in a test
task and in a training task. A shape of a test task does not occur in training tasks either, if the test task's family
is held out from training.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Two hashes of a function's syntax tree: one without its numbers (shape), one with them (instance)."""

    name: str
    shape: str
    instance: str


def function_hashes(source: str) -> set[str]:
    """Return the shape hash of each function in a module's source, or an empty set for text that is not Python."""
    return {found.shape for found in fingerprints(source)}


def fingerprints(source: str, *, smallest: int = 0) -> list[Fingerprint]:
    """Return the fingerprints of all functions whose syntax tree has at least `smallest` nodes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ignore warnings about invalid escapes in strings.
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    walks = ((function.name, _Walk.over(function)) for function in _functions(tree))
    return [
        Fingerprint(name, _hash(walk.shape), _hash([*walk.shape, *walk.numbers]))
        for name, walk in walks
        if len(walk.shape) - walk.shape.count(")") >= smallest
    ]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function below a node, breadth first. Expressions are not visited: they make up most of a syntax tree
    and contain no function definitions."""
    left = deque([tree])
    while left:
        node = left.popleft()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            below = getattr(node, name, None)
            if isinstance(below, list):
                left.extend(below)


def _hash(parts: list[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


@dataclass(slots=True)
class _Walk:
    """Collects the shape of a function (its syntax tree without names, strings and numbers) and its numbers."""

    names: dict[str, int] = field(default_factory=dict)
    shape: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)

    @classmethod
    def over(cls, function: ast.AST) -> _Walk:
        walk = cls()
        walk.visit(function)
        return walk

    def visit(self, node: ast.AST) -> None:
        self.shape.append(type(node).__name__)
        for name in node._fields:
            value = getattr(node, name, None)
            if name == "body" and isinstance(value, list) and value and _is_text(value[0]):
                # A docstring says nothing about what the code does.
                value = value[1:]
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    if not isinstance(item, ast.expr_context):
                        self.visit(item)
                elif isinstance(item, str) and name in ("id", "arg", "name"):
                    self.shape.append(str(self.names.setdefault(item, len(self.names))))
                elif isinstance(node, ast.Constant) and name == "value":
                    self._constant(item)
                elif name != "type_comment":
                    self.shape.append(repr(item))
        self.shape.append(")")

    def _constant(self, value: object) -> None:
        # Templates vary numbers and strings, so only their types enter the shape; True, False and None enter as they
        # are.
        self.shape.append(repr(value) if value is None or isinstance(value, bool) else type(value).__name__)
        if isinstance(value, int | float | complex) and not isinstance(value, bool):
            self.numbers.append(repr(value))


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
