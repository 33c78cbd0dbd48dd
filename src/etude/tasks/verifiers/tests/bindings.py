"""Finds the expressions that the names in a test stand for, from the source alone. Only names that are bound exactly
once, at the outermost level of the test function or the module, are resolved."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.constants import Evaluator, NotConstant

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """The expressions that a name stands for, and the part of the code that can use the name."""

    expressions: tuple[ast.expr, ...] | None
    """The expressions to remove so that the source no longer contains the value that the name stands for. None if the
    source does not spell out this value."""
    within: ast.AST
    """The syntax tree node that contains every use of the bound name."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The names of a module, or of one test function together with those of its module."""

    function: Function | None
    """The test function whose names this scope holds; None for the scope of a module."""
    tree: ast.Module
    taken: frozenset[str]
    """All names that this scope binds in any way. They may hide builtins of the same name."""
    loads: Mapping[str, Sequence[ast.Name]]
    """For each name, the syntax tree nodes that read it anywhere in the module."""
    bindings: dict[str, Binding] = field(default_factory=dict)
    """For each variable that is assigned exactly once: its binding, which tells what expressions it stands for."""
    values: dict[str, object] = field(default_factory=dict)
    """The values of those variables whose value can be computed from the source, by name."""

    def uses(self, name: str, within: ast.AST) -> Iterable[ast.Name]:
        if within is self.tree:
            return self.loads.get(name, ())
        return (node for node in _loads(within) if node.id == name)


def module_scope(tree: ast.Module, evaluator: Evaluator | None = None) -> Scope:
    """Return the names of a module. If an `evaluator` is given, it evaluates the values of all variables, which share
    its step limit. Otherwise each value has a limit of its own."""
    loads: dict[str, list[ast.Name]] = {}
    for use in _loads(tree):
        loads.setdefault(use.id, []).append(use)
    counts = Counter(_bound(tree))
    shared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    taken = frozenset(counts) | (frozenset(vars(builtins)) if "*" in counts else frozenset())
    return _with(
        Scope(None, tree, taken, loads), tree, {name for name in counts if counts[name] > 1} | shared, evaluator
    )


def function_scope(function: Function, module: Scope) -> Scope:
    counts = Counter(_bound(function))
    shared = {name for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    outer = {name: binding for name, binding in module.bindings.items() if name not in counts}
    values = {name: value for name, value in module.values.items() if name not in counts}
    scope = Scope(function, module.tree, module.taken | frozenset(counts), module.loads, outer, values)
    return _with(scope, function, {name for name in counts if counts[name] > 1} | shared)


def _with(
    scope: Scope, place: Function | ast.Module, changing: Collection[str], evaluator: Evaluator | None = None
) -> Scope:
    for name, value in _assigned(place.body):
        if name in changing:
            continue
        scope.bindings[name] = Binding((value,), place)
        try:
            if not uses_taken(value, scope):
                scope.values[name] = (evaluator or Evaluator()).evaluate(value, scope.values)
        except NotConstant:
            continue
    return scope


def uses_taken(node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression calls a function by a name that `scope` binds. Such a name may not mean the builtin
    function."""
    called = {call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    return not called.isdisjoint(scope.taken)


def _loads(within: ast.AST) -> Iterator[ast.Name]:
    return (node for node in ast.walk(within) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            yield node.target.id, node.value


def _bound(scope: Function | ast.Module) -> Iterator[str]:
    """Yield the names that a function or module binds, once per binding. An inner function or class counts only with
    its own name."""
    if not isinstance(scope, ast.Module):
        found = scope.args
        every = [*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg]
        yield from (argument.arg for argument in every if argument)
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)
