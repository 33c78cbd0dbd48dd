"""Finds remaining uses of an old interface in a Python file, from its syntax tree and outside of any box.

These count as uses: imports and references under any alias; the interface's own names anywhere, even as the name of a
new class, which could imitate the old one; strings that contain these names; and functions copied from the interface
under other names. Code that looks names up at run time could use anything, so it also counts as a use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from etude.tasks.hashes import function_hashes

_DYNAMIC = frozenset(
    (
        *("__import__", "importlib", "imp", "pkgutil", "runpy", "modules", "exec", "eval", "compile", "globals"),
        *("builtins", "__builtins__", "__dict__", "__subclasses__", "__getattribute__"),
        *("subprocess", "popen", "ctypes", "marshal", "pickle"),
    )
)
_LEAST_NODES = 40
"""Size of the smallest function, in syntax tree nodes, that is compared with those of the old interface. Smaller
functions may be equal without being copies."""


@dataclass(frozen=True, slots=True)
class OldInterface:
    modules: tuple[str, ...]
    names: tuple[str, ...]
    """Names that only the old interface has: classes, functions, methods."""
    functions: frozenset[str] = frozenset()
    """Hashes of the interface's larger functions, made by `copied_functions`."""


def old_interface_uses(source: bytes, old: OldInterface) -> list[str]:
    """Return one line of text for each use of the old interface. Raises SyntaxError if the source is not Python."""
    tree = ast.parse(source)
    finder = _Finder(old, _aliases(tree), _docstrings(tree) | _parts_of_longer(tree))
    copied = ["a function is a copy of one of the old interface"] if copied_functions(source) & old.functions else []
    return copied + [f"line {line}: {what}" for node in ast.walk(tree) for line, what in finder.uses_at(node)]


def copied_functions(source: bytes) -> frozenset[str]:
    """Return hashes of a module's larger functions. Names do not count, so that renamed copies are found."""
    large = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and sum(1 for _ in ast.walk(node)) >= _LEAST_NODES
    )
    return frozenset(one for node in large for one in function_hashes(ast.unparse(node)))


def used_modules(source: bytes) -> set[str]:
    """Return the dotted names of the imports that the code uses, and of the modules or packages that contain them."""
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    found = {dotted for alias, dotted in _aliases(tree).items() if alias in names}
    return found | {dotted.rpartition(".")[0] for dotted in found}


class _Finder:
    def __init__(self, old: OldInterface, aliases: dict[str, str], skipped: set[int]) -> None:
        self._old, self._aliases, self._passed_over = old, aliases, skipped
        self._said = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, (*old.modules, *old.names)))})(?!\w)")

    def uses_at(self, node: ast.AST) -> Iterator[tuple[int, str]]:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imports(node):
                if self._is_old(name) or (name.endswith(".*") and self._is_parent(name)):
                    yield line, f"imports {name}"
                if _DYNAMIC & set(name.split(".")):
                    yield line, f"looks names up at run time: {name}"
            return
        whole = id(node) not in self._passed_over
        if whole and isinstance(node, ast.Attribute) and self._is_old(dotted := self._dotted(node)):
            yield line, f"uses {dotted}"
        for name in _names(node):
            if name in self._old.names:
                yield line, f"names {name}"
            if name in _DYNAMIC:
                yield line, f"looks names up at run time: {name}"
        if _is_lookup(node):
            yield line, "looks names up at run time: getattr"
        if whole and (match := self._said.search(_literal_text(node))):
            yield line, f"has a string with {match[1]!r}"

    def _is_old(self, dotted: str) -> bool:
        return any(dotted == module or dotted.startswith(f"{module}.") for module in self._old.modules)

    def _is_parent(self, star: str) -> bool:
        return any(module.startswith(star.removesuffix("*")) for module in self._old.modules)

    def _dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return self._aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return the dotted name that each imported name stands for, for imports anywhere in the file."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias, name in zip(node.names, _imports(node), strict=True):
                first = name.split(".")[0]
                found[alias.asname or alias.name.split(".")[0]] = (
                    first if isinstance(node, ast.Import) and not alias.asname else name
                )
    return found


def _imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module or ''}.{alias.name}" for alias in node.names]


def _names(node: ast.AST) -> Iterator[str]:
    for field in ("id", "attr", "name", "arg", "asname"):
        if isinstance(value := getattr(node, field, None), str):
            yield value


def _is_lookup(node: ast.AST) -> bool:
    """Return whether the node is a `getattr` without a literal name. The check of strings finds literal names."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        return len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)
    return False


def _docstrings(tree: ast.Module) -> set[int]:
    """Return the `id()` of syntax tree nodes to skip: docstrings, which may mention the old interface, and other
    expressions in a docstring's place."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr):
                found.add(id(first.value))
    return found


def _parts_of_longer(tree: ast.Module) -> set[int]:
    """Return the `id()` of string concatenations and dotted names that are part of a longer one. Only the longest is
    checked."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            found.add(id(node.value))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            found |= {id(part) for part in (node.left, node.right) if isinstance(part, ast.BinOp)}
    return found


def _literal_text(node: ast.AST) -> str:
    """Return the text of a string constant, or of several that are concatenated in the code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _literal_text(node.left) + _literal_text(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_literal_text, node.values))
    return _literal_text(node.value) if isinstance(node, ast.FormattedValue) else ""
