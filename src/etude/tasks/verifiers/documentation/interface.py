"""Finds the public names of a module, which must be documented, and the facts about them that its syntax tree shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from etude.tasks.verifiers.language import names_in

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Public:
    module: str
    name: str
    """Name of the class or function in its module. A method's name has the class in front: `Queue.push`."""
    docstring: str
    parameters: tuple[str, ...]
    defaults: dict[str, str]
    """Source text of the parameters' default values, by parameter name."""
    returns_value: bool
    """Whether the function returns or yields a value."""
    raises: frozenset[str]
    """Exceptions that the function (for a class, its `__init__`) raises itself, not through what it calls."""
    may_raise: frozenset[str]
    """Exceptions in `raises`, and those raised by functions of the module that this one may call, even indirectly."""

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


def public_of(module: str, source: str) -> list[Public]:
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function)}
    return [_public(module, name, node, functions) for name, node in _nodes(tree)]


def without_docstrings(source: str) -> str:
    """Return a string that is equal for sources that differ only in docstrings. May raise SyntaxError or ValueError."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | _Function) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _nodes(tree: ast.Module) -> Iterator[tuple[str, _Function | ast.ClassDef]]:
    for node in tree.body:
        if isinstance(node, _Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, _Function) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def _public(module: str, name: str, node: _Function | ast.ClassDef, functions: dict[str, _Function]) -> Public:
    function: _Function | None
    if isinstance(node, ast.ClassDef):
        made = [inner for inner in node.body if isinstance(inner, _Function) and inner.name == "__init__"]
        function = made[0] if made else None
    else:
        function = node
    parameters, defaults = _parameters(function) if function else ((), {})
    static = function is not None and any(
        names_in(decorator) == {"staticmethod"} for decorator in function.decorator_list
    )
    if (isinstance(node, ast.ClassDef) or "." in name) and not static:
        parameters = parameters[1:]
    return Public(
        module,
        name,
        ast.get_docstring(node) or "",
        parameters,
        defaults,
        returns_value=isinstance(node, _Function) and _returns_value(node),
        raises=_raises(function) if function else frozenset(),
        may_raise=_may_raise(function, functions) if function else frozenset(),
    )


def _parameters(function: _Function) -> tuple[tuple[str, ...], dict[str, str]]:
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    late = plain[len(plain) - len(given.defaults) :]
    pairs = [*zip(late, given.defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    rest = [given.vararg, *given.kwonlyargs, given.kwarg]
    names = tuple(part.arg for part in [*plain, *rest] if part is not None)
    return names, {part.arg: ast.unparse(value) for part, value in pairs if value is not None}


def _own(function: _Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _returns_value(function: _Function) -> bool:
    for node in _own(function):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
            return True
    return False


def _raises(function: _Function) -> frozenset[str]:
    raised = [node.exc for node in _own(function) if isinstance(node, ast.Raise) and node.exc is not None]
    calls = [exc.func if isinstance(exc, ast.Call) else exc for exc in raised]
    return frozenset(ast.unparse(call).rpartition(".")[2] for call in calls)


def _may_raise(function: _Function, functions: dict[str, _Function]) -> frozenset[str]:
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [function]
    while waiting:
        current = waiting.pop()
        found |= _raises(current)
        new = (names_in(current) & functions.keys()) - seen
        seen |= new
        waiting += [functions[name] for name in new]
    return frozenset(found)
