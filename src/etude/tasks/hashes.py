"""Normalised hashes of functions: equal for functions that differ only in names, texts, comments and layout.

Whatever trains and whatever tests must share none of them, so that a held-out task is held out.
"""

from __future__ import annotations

import ast
import hashlib
import warnings


def function_hashes(source: str) -> set[str]:
    """One hash for each function in a module's source; none for text that is not Python."""
    return {digest for _, digest in named_hashes(source)}


def named_hashes(source: str, *, smallest: int = 0) -> list[tuple[str, str]]:
    """Name and hash of each function whose syntax tree has at least so many nodes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Old escapes in strings are not our business.
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    shaped = ((function.name, _shape(function)) for function in functions)
    return [(name, _hash(shape)) for name, shape in shaped if len(shape) - shape.count(")") >= smallest]


def _shape(function: ast.AST) -> list[str]:
    shape: list[str] = []
    _walk(function, {}, shape)
    return shape


def _hash(shape: list[str]) -> str:
    return hashlib.sha256(" ".join(shape).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _walk(node: ast.AST, names: dict[str, int], shape: list[str]) -> None:
    shape.append(type(node).__name__)
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(value, list) and value and _is_text(value[0]):
            # A docstring says nothing about what the code does.
            value = value[1:]
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                if not isinstance(item, ast.expr_context):
                    _walk(item, names, shape)
            elif isinstance(item, str) and field in ("id", "arg", "name"):
                shape.append(str(names.setdefault(item, len(names))))
            elif isinstance(node, ast.Constant) and field == "value":
                # Numbers and texts are what templates vary; True, False and None are part of the shape.
                shape.append(repr(item) if item is None or isinstance(item, bool) else type(item).__name__)
            elif field != "type_comment":
                shape.append(repr(item))
    shape.append(")")


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
