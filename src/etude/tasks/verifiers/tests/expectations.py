"""What the test functions of a Python file expect, and where in the source it is written.

A site is one assertion that compares something with a literal, or names an exception. Only assertions that are plainly
part of a test are taken: none in a nested function, and none whose failure the test itself might catch.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_EQUAL = frozenset(("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual"))
_OTHER = frozenset(("assertIn", "assertIs", "assertGreater", "assertGreaterEqual", "assertLess", "assertLessEqual"))
_RAISES = frozenset(("raises", "assertRaises", "assertRaisesRegex"))


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    literal: tuple[int, int]
    """Where the expectation is, in bytes of the source."""
    value: object = None
    """Of the literal; None for the name of an exception."""
    exception: str = ""
    statement: tuple[int, int] | None = None
    """Of an assertion of equality: all of it, and what is compared. It can be made elsewhere."""
    compared: tuple[int, int] = (0, 0)
    json: bool = False
    """How the value is written there: as JSON, or as Python does."""


@dataclass(frozen=True, slots=True, eq=False)
class TestFunction:
    __test__ = False  # Not a test, whatever its name.

    path: tuple[str, ...]
    """Its name, after those of its classes."""
    span: tuple[int, int]
    """From its first decorator to the end of its last line, indentation before it left out."""
    name: tuple[int, int]
    indent: int
    sites: tuple[Site, ...] = field(default=())


def test_functions(source: bytes) -> list[TestFunction]:
    """In the order of the source; none if it is not Python that we can read."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    if b"\f" in source or b"\r" in source or b"\v" in source:
        return []  # Lines are counted in more than one way.

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def walk(body: list[ast.stmt], classes: tuple[str, ...]) -> Iterator[TestFunction]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, (*classes, node.name))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                start, end = at(first, node.col_offset), span(node)[1]
                name = source.find(node.name.encode(), at(node.lineno, node.col_offset))
                sites = tuple(_Finder(span).sites(node.body))
                named = (name, name + len(node.name.encode()))
                yield TestFunction((*classes, node.name), (start, end), named, node.col_offset, sites)

    return list(walk(tree.body, ()))


class _Finder:
    def __init__(self, span: Callable[[ast.expr | ast.stmt], tuple[int, int]]) -> None:
        self._span = span

    def sites(self, body: list[ast.stmt]) -> Iterator[Site]:
        for node in body:
            yield from self._statement(node)

    def _statement(self, node: ast.stmt) -> Iterator[Site]:
        if isinstance(node, ast.Assert):
            yield from self._comparison(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self._call(node, node.value)
        elif isinstance(node, ast.With | ast.AsyncWith):
            raising = [site for item in node.items for site in self._raises(item.context_expr)]
            yield from raising
            if all(_is_subtest(item.context_expr) for item in node.items):
                yield from self.sites(node.body)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.If):
            yield from self.sites(node.body)
            yield from self.sites(node.orelse)

    def _comparison(self, node: ast.Assert) -> Iterator[Site]:
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return
        yield from self._pair(node, test.left, test.comparators[0], equal=isinstance(test.ops[0], ast.Eq))

    def _call(self, node: ast.Expr, call: ast.Call) -> Iterator[Site]:
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        plain = len(call.args) >= 2 and not any(isinstance(argument, ast.Starred) for argument in call.args)
        if name in _EQUAL | _OTHER and plain:
            yield from self._pair(node, call.args[0], call.args[1], equal=name in _EQUAL)
        yield from self._raises(call)

    def _pair(self, node: ast.stmt, left: ast.expr, right: ast.expr, *, equal: bool) -> Iterator[Site]:
        for literal, other in ((right, left), (left, right)):
            if _is_literal(literal) and not _is_literal(other):
                value = ast.literal_eval(literal)
                found = (self._span(node), self._span(other)) if equal else (None, (0, 0))
                yield Site(self._span(literal), value, "", *found)
                return

    def _raises(self, node: ast.expr) -> Iterator[Site]:
        if isinstance(node, ast.Call) and node.args:
            function, kind = node.func, node.args[0]
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in _RAISES and isinstance(kind, ast.Name):
                yield Site(self._span(kind), exception=kind.id)


def _is_subtest(node: ast.expr) -> bool:
    """Does the block's failure stay a failure?"""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("subTest", "test")


def _is_literal(node: ast.expr) -> bool:
    """Of a value that can be written down again: 1e999 cannot."""
    try:
        value = ast.literal_eval(node)
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
