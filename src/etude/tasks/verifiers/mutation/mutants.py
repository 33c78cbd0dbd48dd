"""Makes mutants of a Python module: copies with one small fault each. A task's mutants are stored in
tests/mutants.json, which no agent sees.

A module always has the same mutants in the same order. Some may behave like the original, so only a run of a good test
suite shows which mutants it can detect.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from etude.tasks.verifiers.inputs import read_json

FILE = "tests/mutants.json"

_Fault = Callable[[], None]

_OTHER_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OTHER_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
}
_OTHER_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str
    line: int
    """Line of the fault in the original module."""
    fault: str
    """Kind of fault, such as `comparison` or `constant`."""
    source: str


class _Stored(BaseModel):
    model_config = ConfigDict(strict=True)

    mutants: list[Mutant] = Field(min_length=1)


def dump_mutants(mutants: Sequence[Mutant]) -> bytes:
    return (json.dumps({"mutants": [asdict(mutant) for mutant in mutants]}, indent=1) + "\n").encode()


def load_mutants(path: Path) -> tuple[Mutant, ...]:
    """Load the mutants of a task from its JSON file. Raises a TaskError that names what is missing or wrong."""
    return tuple(read_json(path, _Stored).mutants)


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    true = ast.parse(source)
    for place, node in enumerate(ast.walk(true)):
        for which in range(len(list(_faults(node)))):
            tree = ast.parse(source)
            mutated = next(itertools.islice(ast.walk(tree), place, None))
            fault, make = list(_faults(mutated))[which]
            make()
            yield Mutant(path, getattr(node, "lineno", 1), fault, ast.unparse(ast.fix_missing_locations(tree)) + "\n")


def _faults(node: ast.AST) -> Iterator[tuple[str, _Fault]]:
    """Yield the kind of each fault that can be made at a node, and a function that makes it in place."""
    if isinstance(node, ast.Compare):
        for which, sign in enumerate(node.ops):
            for other in _OTHER_COMPARISONS.get(type(sign), ()):
                yield "comparison", _set_item(node.ops, which, other())
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        for operator in _OTHER_OPERATORS.get(type(node.op), ()):
            yield "operator", _set(node, "op", operator())
    elif isinstance(node, ast.BoolOp):
        yield "logic", _set(node, "op", ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition", _set(node, "test", ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", _set(node, "value", not node.value)
        elif isinstance(node.value, int):
            yield "constant", _set(node, "value", node.value + 1)
            yield "constant", _set(node, "value", node.value - 1)
    elif isinstance(node, ast.Name) and node.id in _OTHER_FUNCTIONS:
        yield "function", _set(node, "id", _OTHER_FUNCTIONS[node.id])
    elif isinstance(node, ast.Slice):
        for end in ("lower", "upper"):
            if getattr(node, end) is not None:
                yield "slice", _set(node, end, None)
    for field in ("body", "orelse"):
        statements = getattr(node, field, None)
        if isinstance(statements, list):
            for which, statement in enumerate(statements):
                if _is_removable(statement):
                    yield "left out", _set_item(statements, which, ast.Pass())


def _is_removable(statement: ast.stmt) -> bool:
    called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return called or isinstance(statement, ast.AugAssign | ast.Raise | ast.Break | ast.Continue)


def _set(node: ast.AST, field: str, value: object) -> _Fault:
    return lambda: setattr(node, field, value)


def _set_item(items: list[ast.cmpop] | list[ast.stmt], place: int, value: ast.AST) -> _Fault:
    return lambda: items.__setitem__(place, value)  # type: ignore[call-overload]
