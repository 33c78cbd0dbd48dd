"""Checks that a refactoring keeps the public names and their signatures, and that it hides no code from the measures of
size and duplication."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_HIDING = re.compile(
    r"__\w+__ | breakpoint | compile | delattr | eval | exec | getattr | globals | locals | setattr | vars",
    re.VERBOSE,
)
"""Matches names that can hide code from the measures of size and duplication: they run code from a string, such as
`exec`, or use a function without naming it, such as `getattr`."""
_USUAL = ("__name__", "__all__")
_HARMLESS = frozenset(
    {"__future__", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "heapq", "itertools"}
    | {"math", "re", "string", "textwrap", "typing"}
)


def changes(before: str, after: str) -> Iterator[str]:
    """Yield the differences between the public interfaces of two versions of a module."""
    old, new = ast.parse(before), ast.parse(after)
    kept, had = dict(_interface(new)), dict(_interface(old))
    bound = _bound(new)
    for name, how in had.items():
        if name in kept and kept[name] != how:
            yield f"{name} has another signature, or its docstring was added or removed"
        elif name not in kept and (name not in bound or "." in name):
            yield f"{name} was removed"
    yield from (f"{name} is new and public" for name in kept if name not in had)


def hidden_code_risks(before: str, after: str, ours: Collection[str] = ()) -> list[str]:
    """Return what could hide code in the new version: names such as `exec`, if used more often than before, and newly
    imported modules, except those in `ours` (the library's own) and those that cannot execute strings."""
    imported = _imported(after) - _imported(before) - _HARMLESS - set(ours)
    return sorted({*imported, *(_hiding_names(after) - _hiding_names(before))})


def _imported(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def _interface(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, _Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, _signature(node)
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                public = isinstance(inner, _Function) and (inner.name == "__init__" or not inner.name.startswith("_"))
                if isinstance(inner, _Function) and public:
                    yield f"{node.name}.{inner.name}", _signature(inner)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and not target.id.startswith("_"):
                    yield target.id, "value"


def _signature(node: _Function | ast.ClassDef) -> str:
    """Return a string that differs if the parameters, bases, decorators, `async` or presence of a docstring do."""
    marks = [ast.dump(decorator) for decorator in node.decorator_list]
    documented = ast.get_docstring(node) is not None
    if isinstance(node, ast.ClassDef):
        return repr((marks, documented, [ast.dump(base) for base in node.bases]))
    return repr((type(node).__name__, marks, documented, ast.unparse(node.args)))


def _bound(tree: ast.Module) -> set[str]:
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def _hiding_names(source: str) -> Counter[str]:
    tree = ast.parse(source)
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    return Counter(name for name in names if _HIDING.fullmatch(name) and name not in _USUAL)
