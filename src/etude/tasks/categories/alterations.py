"""Finds small edits of Python source: damages, which may change what the code does, and harmless edits, which do not.

The form of an edit does not show which kind it is: both kinds change comparisons, for example. Each alteration replaces
the text of one expression or statement and leaves the rest of the file unchanged.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

_TURNED: dict[type[ast.cmpop], str] = {
    ast.Lt: ">", ast.Gt: "<", ast.LtE: ">=", ast.GtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_OTHER: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.Gt: (">", ">="), ast.LtE: ("<=", "<"), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SPELT = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


@dataclass(frozen=True, slots=True, order=True)
class Alteration:
    path: str
    start: int
    """Offset of the replaced text in the original file, in bytes. `end` is the offset after it."""
    end: int
    text: str
    kind: str
    first: int
    """First line of the original file that the alteration changes, counted from 1. `last` is the last such line."""
    last: int


def altered(files: Mapping[str, bytes], alterations: Iterable[Alteration]) -> dict[str, bytes]:
    """Return the files with the alterations applied. The alterations must not overlap."""
    result = dict(files)
    for one in sorted(alterations, reverse=True):
        data = result[one.path]
        result[one.path] = data[: one.start] + one.text.encode() + data[one.end :]
    return result


def damages(path: str, source: bytes) -> list[Alteration]:
    """Return every possible damage of a file: a changed operator, comparison, constant or built-in name. No test is run
    here, so a damage may change nothing that a test notices."""
    place = _Places(path, source)
    return sorted(found for node in _code(place.tree) for found in _damage(node, place))


def harmless(path: str, source: bytes) -> list[Alteration]:
    """Return every possible harmless edit of a file, such as a comparison with swapped operands, a negated condition or
    a named result. With operands of built-in types the code behaves as before."""
    place = _Places(path, source)
    return sorted(found for node in _code(place.tree) for found in _same(node, place))


def apart(alterations: Iterable[Alteration], lines: int = 0) -> list[Alteration]:
    """Select alterations in the given order. An alteration is skipped if it shares a line with a selected one, or has
    fewer than `lines` lines between it and a selected one."""
    kept: list[Alteration] = []
    for one in alterations:
        if all(one.path != k.path or one.first > k.last + lines or one.last < k.first - lines for k in kept):
            kept.append(one)
    return kept


class _Places:
    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.tree = ast.parse(source)
        self._lines = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]

    def at(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column

    def text(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.source.decode(), node) or ""

    def instead(self, node: ast.expr | ast.stmt, text: str, kind: str) -> Alteration:
        end = node.end_lineno or node.lineno
        span = self.at(node.lineno, node.col_offset), self.at(end, node.end_col_offset or 0)
        return Alteration(self.path, *span, text, kind, node.lineno, end)

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> Iterator[Alteration]:
        """Yield the alteration that replaces the operator `old` between two operands by `new`, if both operands are on
        one line."""
        low = self.at(left.end_lineno or left.lineno, left.end_col_offset or 0)
        high = self.at(right.lineno, right.col_offset)
        where = self.source[low:high].find(old.encode())
        if where >= 0 and self.source[low:high].count(b"\n") == 0:
            start = low + where
            yield Alteration(self.path, start, start + len(old), new, kind, right.lineno, right.lineno)


def _code(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all syntax nodes in function bodies, without docstrings and signatures."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                    yield from ast.walk(statement)


def _damage(node: ast.AST, place: _Places) -> Iterator[Alteration]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        yield from place.between(node.left, node.comparators[0], *_OTHER[type(node.ops[0])], "cmp")
    elif isinstance(node, ast.BinOp) and type(node.op) in _OTHER and not _is_text(node.left):
        yield from place.between(node.left, node.right, *_OTHER[type(node.op)], "op")
    elif isinstance(node, ast.BoolOp):
        yield from place.between(node.values[0], node.values[1], *_OTHER[type(node.op)], "bool")
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield place.instead(node, str(node.value + 1), "const")
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield place.instead(node, _NAMES[node.id], "name")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield place.instead(node, place.text(node.operand), "bool")
    elif isinstance(node, ast.AugAssign) and type(node.op) in _OTHER and isinstance(node.target, ast.Name):
        old, new = _OTHER[type(node.op)]
        yield from place.between(node.target, node.value, f"{old}=", f"{new}=", "op")


def _same(node: ast.AST, place: _Places) -> Iterator[Alteration]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _TURNED and _one_line(node):
        left, right = place.text(node.left), place.text(node.comparators[0])
        if _is_tight(node.left) and _is_tight(node.comparators[0]):
            yield place.instead(node, f"{right} {_TURNED[type(node.ops[0])]} {left}", "turned")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _one_line(node):
        if isinstance(node.right, ast.Constant) and type(node.right.value) is int and _is_tight(node.left):
            yield place.instead(node, f"{place.text(node.right)} + {place.text(node.left)}", "moved")
    elif isinstance(node, ast.If) and not node.orelse and _is_turnable(node.test):
        yield place.instead(node.test, f"not ({_opposite(node.test, place.text)})", "negated")
    elif isinstance(node, ast.For) and isinstance(node.iter, ast.Name):
        yield place.instead(node.iter, f"list({node.iter.id})", "copied")
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _one_line(node):
        call = node.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append":
            text = f"{place.text(call.func.value)}.extend([{place.text(call.args[0])}])"
            yield place.instead(node, text, "extended")
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and _one_line(node):
        yield from _in_two_steps(node, node.value, place)
    elif (
        isinstance(node, ast.Return) and not isinstance(node.value, ast.Name | ast.Constant | None) and _one_line(node)
    ):
        indent = " " * node.col_offset
        yield place.instead(node, f"result = {place.text(node.value)}\n{indent}return result", "named")


def _in_two_steps(node: ast.Assign, value: ast.BinOp, place: _Places) -> Iterator[Alteration]:
    """Yield the edit that splits `x = a - b` into `x = a` and `x -= b`. Only `-` and `//` are split, which lists do not
    have: for lists, `+=` would change `a` in place."""
    target, right = node.targets[0], value.right
    if not isinstance(value.op, ast.Sub | ast.FloorDiv) or not isinstance(target, ast.Name) or not _is_tight(right):
        return
    if all(getattr(part, "id", "") != target.id for part in ast.walk(right)):
        start = f"{target.id} = {place.text(value.left)}"
        then = f"{target.id} {_OTHER[type(value.op)][0]}= {place.text(right)}"
        yield place.instead(node, f"{start}\n{' ' * node.col_offset}{then}", "stepwise")


def _opposite(test: ast.expr, text: Callable[[ast.expr], str]) -> str:
    assert isinstance(test, ast.Compare)
    opposite = {"<": ">=", ">": "<=", "<=": ">", ">=": "<", "==": "!=", "!=": "=="}
    return f"{text(test.left)} {opposite[_SPELT[type(test.ops[0])]]} {text(test.comparators[0])}"


def _is_turnable(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _SPELT and _one_line(test)


def _is_tight(node: ast.expr) -> bool:
    """Whether the expression needs no parentheses as an operand of a comparison or a sum."""
    return isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Subscript | ast.Attribute)


def _is_text(node: ast.expr) -> bool:
    """Whether the expression is a string, so that a `%` after it formats instead of dividing."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _one_line(node: ast.expr | ast.stmt) -> bool:
    return node.lineno == node.end_lineno
