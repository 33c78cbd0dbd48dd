"""Rewrites a Python module at random, so that its source changes but its behaviour does not.

A test suite that passes on the original module and fails on a rewrite inspects the source. A rewrite has other names
for locals, other layout, no comments, and functions in another order. In some places, it has equivalent code:
comparisons with swapped operands, swapped branches, results assigned to a variable before they are returned. Each
grading makes new rewrites.
"""

from __future__ import annotations

import ast
import random

from etude.tasks.verifiers.language import stored_names

_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
_WORDS = ("entry", "amount", "current", "outcome", "item", "state", "held", "given", "known", "spare")
_NO_RENAMING = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Match)
"""Locals are not renamed in a function that contains one of these nodes."""


def rewritten(source: str, rng: random.Random) -> str:
    tree = ast.parse(source)
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    tree.body = _reordered(tree.body, rng)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            rename_locals(node, taken, rng)
    return ast.unparse(ast.fix_missing_locations(_Rewriter(rng).visit(tree))) + "\n"


def _reordered(body: list[ast.stmt], rng: random.Random) -> list[ast.stmt]:
    """Shuffle each run of adjacent functions. Functions with decorators or non-constant defaults stay in place."""
    found: list[ast.stmt] = []
    run: list[ast.stmt] = []
    for node in [*body, ast.Pass()]:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and _plain_defaults(node):
            run.append(node)
        else:
            rng.shuffle(run)
            found += [*run, node]
            run = []
    return found[:-1]


def _plain_defaults(node: ast.FunctionDef) -> bool:
    given = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
    return all(isinstance(value, ast.Constant) for value in given)


def rename_locals(function: ast.FunctionDef, taken: set[str], rng: random.Random) -> None:
    """Rename a function's locals in place. The new names are not in `taken`, and are added to it."""
    inside = list(ast.walk(function))[1:]
    if any(isinstance(node, _NO_RENAMING) for node in inside):
        return
    fixed = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
    fixed |= {node.name for node in inside if isinstance(node, ast.ExceptHandler) and node.name}
    new: dict[str, str] = {}
    for name in sorted(stored_names(function) - fixed):
        word = f"{rng.choice(_WORDS)}_{rng.choice(_WORDS)}"
        while word in taken:
            word += rng.choice("abcdefgh")
        taken.add(word)
        new[name] = word
    for node in inside:
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        simple = len(node.ops) == 1 and type(node.ops[0]) in _MIRRORED
        if (
            simple
            and _is_order_independent(node.left)
            and _is_order_independent(node.comparators[0])
            and self._rng.random() < 0.5
        ):
            other = _MIRRORED[type(node.ops[0])]()
            return ast.Compare(node.comparators[0], [other], [node.left])
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node.orelse and self._rng.random() < 0.5:
            return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if self._rng.random() < 0.5:
            return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if node.value is not None and self._rng.random() < 0.5:
            name = f"answer_{self._rng.randrange(1000)}"
            return [
                ast.Assign([ast.Name(name, ast.Store())], node.value),
                ast.Return(ast.Name(name, ast.Load())),
            ]
        return node


def _is_order_independent(node: ast.expr) -> bool:
    """Return whether evaluating the expression earlier or later gives the same value and has no side effect."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len" and all(map(_is_order_independent, node.args))
    return isinstance(node, ast.Name | ast.Constant)
