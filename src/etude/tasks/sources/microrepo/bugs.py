"""Generates bugs: all mutations of a function, each with its kind of bug.

A mutation changes exactly one line and keeps its indentation, so that a single line edit undoes it.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SEEN_KINDS = ("op", "cmp", "const", "var", "minmax", "swap", "start", "noret")
UNSEEN_KINDS = ("off1", "bool")
"""Kinds of bug that occur only in test tasks: not in train or dev tasks, nor in the documents for pretraining. `off1`
is close to the seen kinds: it mostly changes the same comparisons as `cmp`, which reverses them (`<` to `>`), but only
shifts them by one (`<` to `<=`). `bool` is far from them: no other kind changes `and`, `or`, `not`, True or False."""
KINDS = SEEN_KINDS + UNSEEN_KINDS

_OPERATORS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"),
              ast.Mod: ("%", "//")}  # fmt: skip
_FLIPPED = {ast.Lt: ("<", ">"), ast.Gt: (">", "<"), ast.LtE: ("<=", ">="), ast.GtE: (">=", "<="),
            ast.Eq: ("==", "!=")}  # fmt: skip
_LOOSENED = {ast.Lt: ("<", "<="), ast.Gt: (">", ">="), ast.LtE: ("<=", "<"), ast.GtE: (">=", ">")}


@dataclass(frozen=True, slots=True)
class Mutation:
    kind: str
    line: int
    """Number of the changed line within the function's source, from 0."""
    text: str
    """The changed line, which now has the bug, with its indentation."""

    def apply(self, source: str) -> str:
        lines = source.split("\n")
        lines[self.line] = self.text
        return "\n".join(lines)


def mutations(source: str, groups: Mapping[str, str], rng: random.Random) -> list[Mutation]:
    """Return all distinct mutations of a function. `groups` has the type of each name; `rng` picks wrong values."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = source.split("\n")
    found: dict[str, Mutation] = {}
    for kind, node, start, end, new in _edits(function, lines, groups, rng):
        line = lines[node.lineno - 1]
        text = line[:start] + new + line[end:]
        found.setdefault(f"{node.lineno} {text}", Mutation(kind, node.lineno - 1, text))
    return list(found.values())


Edit = tuple[str, ast.expr | ast.stmt, int, int, str]
"""One possible bug, as a change within one line: kind of bug, a syntax node on that line, the columns where the
replaced text starts and ends, and the replacement."""


def _edits(
    function: ast.FunctionDef, lines: list[str], groups: Mapping[str, str], rng: random.Random
) -> Iterator[Edit]:
    nodes = [n for part in function.body for n in ast.walk(part) if isinstance(n, ast.expr | ast.stmt)]
    starts = {node.value for node in nodes if isinstance(node, ast.Assign)}
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)):
        if isinstance(node, ast.Compare):
            left, right = node.left, node.comparators[0]
            yield from _symbol("cmp", lines, left, right, _FLIPPED.get(type(node.ops[0])))
            yield from _symbol("off1", lines, left, right, _LOOSENED.get(type(node.ops[0])))
        elif isinstance(node, ast.BinOp):
            yield from _symbol("op", lines, node.left, node.right, _OPERATORS.get(type(node.op)))
            yield from _swap(node, lines[node.lineno - 1])
            if isinstance(node.op, ast.Add | ast.Sub) and _is_int(node.right, 1):
                assert node.left.end_col_offset is not None
                assert node.right.end_col_offset is not None
                yield "off1", node, node.left.end_col_offset, node.right.end_col_offset, ""
        elif isinstance(node, ast.AugAssign):
            yield from _symbol("op", lines, node.target, node.value, _OPERATORS.get(type(node.op)))
        elif isinstance(node, ast.BoolOp):
            pair = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from _symbol("bool", lines, node.values[0], node.values[1], pair)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "bool", node, node.col_offset, node.operand.col_offset, ""
        elif isinstance(node, ast.Constant) and node.end_col_offset is not None:
            if type(node.value) is bool:
                yield "bool", node, node.col_offset, node.end_col_offset, str(not node.value)
            elif type(node.value) is int:
                wrong = max(0, node.value + rng.choice((-3, -2, -1, 1, 2, 3, 10)))
                new = wrong if wrong != node.value else node.value + 1
                kind = "start" if node in starts else "const"
                yield kind, node, node.col_offset, node.end_col_offset, str(new)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from _call(node, node.func)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.end_col_offset is not None:
            others = [n for n, group in groups.items() if group == groups.get(node.id) and n != node.id]
            if others:
                yield "var", node, node.col_offset, node.end_col_offset, rng.choice(others)
        elif isinstance(node, ast.Return) and node.value is not None:
            yield "noret", node, node.col_offset, node.value.col_offset, ""


def _call(node: ast.Call, name: ast.Name) -> Iterator[Edit]:
    if name.id in ("min", "max"):
        yield "minmax", node, name.col_offset, name.col_offset + 3, "max" if name.id == "min" else "min"
    # A bound that ends in a sum such as "+ 1" is left to the BinOp case of `_edits`.
    if name.id == "range" and node.args and not isinstance(node.args[-1], ast.BinOp):
        end = node.args[-1].end_col_offset
        assert end is not None
        yield "off1", node, end, end, " - 1"


def _swap(node: ast.BinOp, line: str) -> Iterator[Edit]:
    """Yield the edit that exchanges the two operands of `-` or `//`, whose order matters. `line` is the source line."""
    sign = {ast.Sub: "-", ast.FloorDiv: "//"}.get(type(node.op))
    if sign is None or node.left.end_col_offset is None or node.end_col_offset is None:
        return
    # Parentheses around an operand are not part of its node, but must move with it.
    at = line.index(sign, node.left.end_col_offset)
    left, right = line[node.col_offset : at].rstrip(), line[at + len(sign) : node.end_col_offset].lstrip()
    if left != right:
        yield "swap", node, node.col_offset, node.end_col_offset, f"{right} {sign} {left}"


def _symbol(
    kind: str, lines: list[str], left: ast.expr, right: ast.expr, pair: tuple[str, str] | None
) -> Iterator[Edit]:
    """Yield the edit that replaces the operator between two operands of one line, as `pair` says (old, new)."""
    if pair is None or left.end_col_offset is None or left.lineno != right.lineno:
        return
    at = lines[left.lineno - 1].find(pair[0], left.end_col_offset, right.col_offset)
    # AugAssign's operator is followed by "=", which stays.
    if at >= 0:
        yield kind, left, at, at + len(pair[0]), pair[1]


def _is_int(node: ast.expr, value: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == value
