"""Finds the values and exceptions that the test functions of a Python file expect, and where they are in the source.

A site is one assertion that compares an expression with a known value, or that names an exception. A value is known if
it is a literal or can be computed from literals. An assertion that checks a table row by row may have a different known
value for each row. Assertions are left out if they are in a nested function, or if the test itself might catch their
failure.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.bindings import Scope, function_scope, module_scope
from etude.tasks.verifiers.tests.hiding import Candidate, withholdable_sites
from etude.tasks.verifiers.tests.site import Site
from etude.tasks.verifiers.tests.tables import Parameters, Table, loop_table, parameters
from etude.tasks.verifiers.tests.visible_answers import visible_values

_EQUAL = frozenset(("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual"))
_OTHER = frozenset(("assertIn", "assertIs", "assertGreater", "assertGreaterEqual", "assertLess", "assertLessEqual"))
_RAISES = frozenset(("raises", "assertRaises", "assertRaisesRegex"))


@dataclass(frozen=True, slots=True, eq=False)
class TestFunction:
    """A test function and its sites: the assertions with a known expectation. Positions are byte offsets."""

    __test__ = False  # pytest must not collect this class.

    path: tuple[str, ...]
    """Names of the enclosing classes (in JavaScript, suites), outermost first, and then the function's own."""
    span: tuple[int, int]
    """Byte range of the function: from its first decorator, without the indentation, to the end of its last line."""
    name: tuple[int, int]
    """Byte range of the function's name."""
    indent: int
    sites: tuple[Site, ...] = field(default=())


def test_functions(source: bytes) -> list[TestFunction]:
    """Return the test functions of a Python source in their order, or an empty list if the source cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    if b"\f" in source or b"\r" in source or b"\v" in source:
        return []  # With these characters, tools disagree on where lines end.

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
                sites = tuple(_Finder(node, module, source, span).all_sites())
                named = (name, name + len(node.name.encode()))
                yield TestFunction((*classes, node.name), (start, end), named, node.col_offset, sites)

    module = module_scope(tree)
    return list(walk(tree.body, ()))


class _Finder:
    def __init__(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        module: Scope,
        source: bytes,
        span: Callable[[ast.expr | ast.stmt], tuple[int, int]],
    ) -> None:
        self._function, self._span = function, span
        self._scope = function_scope(function, module)
        self._parameters: Parameters | None = parameters(self._scope, source, span)
        self._tables: list[Table] = []

    def all_sites(self) -> Iterator[Site]:
        found = list(self._sites(self._function.body))
        candidates = [one for one in found if isinstance(one, Candidate)]
        sites = withholdable_sites(candidates, self._scope, self._parameters, self._span)
        for one in found:
            if not isinstance(one, Candidate):
                yield one
            elif one in sites:
                yield sites[one]

    def _sites(self, body: list[ast.stmt]) -> Iterator[Site | Candidate]:
        for node in body:
            yield from self._statement(node)

    def _statement(self, node: ast.stmt) -> Iterator[Site | Candidate]:
        if isinstance(node, ast.Assert):
            yield from self._comparison(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self._call(node, node.value)
        elif isinstance(node, ast.With | ast.AsyncWith):
            raising = [site for item in node.items for site in self._raises(item.context_expr)]
            yield from raising
            if all(_is_subtest(item.context_expr) for item in node.items):
                yield from self._sites(node.body)
        elif isinstance(node, ast.For):
            table = loop_table(node, self._scope, self._scope.values)
            yield from self._sites_in_block(node.body, [] if table is None else [*self._tables, table])
            yield from self._sites(node.orelse)
        elif isinstance(node, ast.AsyncFor | ast.While | ast.If):
            yield from self._sites_in_block(node.body, [])
            yield from self._sites_in_block(node.orelse, [])

    def _sites_in_block(self, body: list[ast.stmt], tables: list[Table]) -> Iterator[Site | Candidate]:
        """Yield the sites in the body of a loop or branch. `tables` are those of all loops around its statements. It
        must be empty if some iterations may skip the body, since the rows that reach it are then unknown."""
        outer, self._tables = self._tables, tables
        yield from self._sites(body)
        self._tables = outer

    def _comparison(self, node: ast.Assert) -> Iterator[Site | Candidate]:
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return
        yield from self._pair(node, test.left, test.comparators[0], equal=isinstance(test.ops[0], ast.Eq))

    def _call(self, node: ast.Expr, call: ast.Call) -> Iterator[Site | Candidate]:
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        plain = len(call.args) >= 2 and not any(isinstance(argument, ast.Starred) for argument in call.args)
        if name in _EQUAL | _OTHER and plain:
            yield from self._pair(node, call.args[0], call.args[1], equal=name in _EQUAL)
        if name == "assertAlmostEqual" and plain and (within := _tolerance(call)) is not None:
            one, other = call.args[:2]
            sides = ((_as_approx(other, within), one), (_as_approx(one, within), other))
            yield Candidate(node, sides, tuple(self._tables))
        yield from self._raises(call)

    def _pair(self, node: ast.stmt, left: ast.expr, right: ast.expr, *, equal: bool) -> Iterator[Site | Candidate]:
        for literal, other in ((right, left), (left, right)):
            if _is_literal(literal) and not _is_literal(other):
                value = ast.literal_eval(literal)
                if equal:
                    given = visible_values(other, [self._scope.values], [value])
                    yield Site(self._span(literal), (value,), "", self._span(node), self._span(other), given)
                else:
                    yield Site(self._span(literal), (value,), compared=self._span(other))
                return
        if equal and not _is_literal(left):
            yield Candidate(node, ((right, left), (left, right)), tuple(self._tables))

    def _raises(self, node: ast.expr) -> Iterator[Site]:
        if isinstance(node, ast.Call) and node.args:
            function, kind = node.func, node.args[0]
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in _RAISES and isinstance(kind, ast.Name):
                yield Site(self._span(kind), (None,), kind.id)


def _is_subtest(node: ast.expr) -> bool:
    """Return whether a context manager opens a subtest. A failure inside a subtest still fails the test, so its
    assertions count as sites."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("subTest", "test")


def _tolerance(call: ast.Call) -> ast.expr | None:
    """Return the tolerance of an `assertAlmostEqual` call. None if `places` is not an integer constant, or if the call
    has both `places` and `delta`."""
    given = {keyword.arg: keyword.value for keyword in call.keywords} | dict(
        zip(["places"], call.args[2:], strict=False)
    )
    if "delta" in given:
        return given["delta"] if "places" not in given else None
    places = given.get("places", ast.Constant(7))
    if not isinstance(places, ast.Constant) or not isinstance(places.value, int):
        return None
    return ast.Constant(0.5 * 10.0**-places.value)


def _as_approx(expected: ast.expr, within: ast.expr) -> ast.expr:
    """Return an `assertAlmostEqual`'s expected value as a `pytest.approx` call that accepts the same numbers."""
    text = f"pytest.approx({ast.unparse(expected)}, rel=0, abs={ast.unparse(within)})"
    made = ast.parse(text, mode="eval").body
    return ast.copy_location(made, expected)


def _is_literal(node: ast.expr) -> bool:
    """Return whether an expression is a literal whose repr can be evaluated again (1e999 cannot)."""
    try:
        value = ast.literal_eval(node)
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
