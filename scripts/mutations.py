"""Small faults in Python source: what a mutation is, all that a file offers, and probes that tell who executes it.

A mutation replaces one span of a file, so that everything else keeps its bytes. Annotations, docstrings, formatted
messages and `if TYPE_CHECKING` are left alone: no test could tell.
"""

from __future__ import annotations

import ast
from bisect import bisect
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}


@dataclass(frozen=True)
class Mutation:
    """A span of a file, in bytes, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        if source[self.start : self.end].decode() != self.before:
            raise ValueError(f"{self.file}:{self.line} no longer reads {self.before!r}")
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutations_of(file: str, source: bytes) -> list[Mutation]:
    """Everything that can be made wrong in a file, in its order."""
    return sorted(_Finder(file, source).found, key=lambda mutation: (mutation.start, mutation.end))


def mutations_below(root: Path, folder: str) -> list[Mutation]:
    """Those of all Python files below a folder, named from the root."""
    files = sorted((root / folder).rglob("*.py"))
    return [found for file in files for found in mutations_of(str(file.relative_to(root)), file.read_bytes())]


def with_probes(source: str, lines: dict[int, int]) -> str:
    """The source with probes (`reached.py`): that of a number stands before the statement of its line.

    What runs at import has a probe at the head of every function instead: its faults show wherever the file is used.
    """
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    texts = source.splitlines(keepends=True)
    # Nothing can stand before the body in `def name(self): ...`.
    functions = [node for node in functions if not texts[_head(node) - 1][: node.body[0].col_offset].strip()]
    probes: dict[int, set[int]] = {}
    for number, line in lines.items():
        bodies = [node for node in functions if node.body[0].lineno <= line <= _last(node)]
        around = [
            _first(node)
            for body in bodies
            for node in ast.walk(body)
            if isinstance(node, ast.stmt) and node is not body and _first(node) <= line <= _last(node)
        ]
        # Nothing can stand before an `elif`, which is a statement of its own in the tree.
        around = [at for at in around if not texts[at - 1].lstrip().startswith("elif ")]
        for at in [max(around)] if around else map(_head, functions):
            probes.setdefault(at, set()).add(number)
    result = ""
    for at, text in enumerate(texts, 1):
        indent = text[: len(text) - len(text.lstrip())]
        for number in sorted(probes.get(at, ())):
            result += f'{indent}try:\n{indent} __import__("reached").line({number})\n'
            result += f"{indent}except ImportError:\n{indent} pass\n"
        result += text
    return result


def _first(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def _last(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _head(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The first line of the body that is not its docstring."""
    documented = ast.get_docstring(function, clean=False) is not None and len(function.body) > 1
    return _first(function.body[1 if documented else 0])


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutation] = []
        self.visit(ast.parse(source))

    # --- What is left out.

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    # --- What is offered.

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
            self._between(left, right, *_COMPARISONS[type(operator)])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.generic_visit(node)
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, *words)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)
        if type(node.op) in _ARITHMETIC and not any(map(_is_text, (node.left, node.right))):
            self._between(node.left, node.right, *_ARITHMETIC[type(node.op)])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            self._replace(self._start(node), self._start(node) + len("not "), "")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._whole(node, str(not node.value))
        elif isinstance(node.value, int):
            self._whole(node, str(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._whole(node, "return None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._whole(node, "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            self._whole(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and not _is_text(node.value):
            signs = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
            self._between(node.target, node.value, *signs)
        self.generic_visit(node)

    # --- Spans.

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def _whole(self, node: ast.expr | ast.stmt, after: str) -> None:
        self._replace(self._start(node), self._end(node), after)

    def _negate(self, test: ast.expr) -> None:
        self._whole(test, f"(not ({self.source[self._start(test) : self._end(test)].decode()}))")

    def _between(self, left: ast.expr, right: ast.expr, before: str, after: str) -> None:
        """An operator stands once between its operands, unless a comment does too."""
        start, end = self._end(left), self._start(right)
        gap = self.source[start:end].decode()
        if gap.count(before) == 1:
            at = start + len(gap[: gap.index(before)].encode())
            self._replace(at, at + len(before), after)

    def _replace(self, start: int, end: int, after: str) -> None:
        before = self.source[start:end].decode()
        self.found.append(Mutation(self.file, bisect(self.starts, start), start, end, before, after))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
