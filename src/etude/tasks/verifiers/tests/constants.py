"""Evaluates constant Python expressions: literals, operators, and calls of pure builtin functions.

None of the test's code is run: the evaluation walks the syntax tree, and any unknown node raises `NotConstant`. Values
have at most `LARGEST` items, characters or bits, so that no expression takes long.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from etude.tasks.verifiers.tests.approximate import near

LARGEST = 10_000
"""Largest size of a value: its number of items, characters or bits."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        abs, bool, bytes, chr, dict, divmod, enumerate, float, frozenset, int, len, list, max, min, ord, range, repr,
        reversed, round, set, sorted, str, sum, tuple, zip,
    )
}  # fmt: skip
_METHODS = frozenset((
    "capitalize", "count", "decode", "encode", "endswith", "get", "index", "items", "join", "keys", "lower", "lstrip",
    "replace", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper", "values",
))  # fmt: skip
_CONTAINERS = (str, bytes, list, tuple, dict, set, frozenset)
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


class NotConstant(Exception):
    """Raised if the value of an expression cannot be computed from the source alone."""


def evaluate(node: ast.expr, names: Mapping[str, object]) -> Any:
    """Return the value of an expression. Raises NotConstant if it is not constant. `names` maps names to their known
    values. The caller must make sure that the code does not rebind builtins."""
    try:
        return _bounded(_value(node, names))
    except NotConstant:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise NotConstant(f"line {node.lineno}: {error}") from error


def _value(node: ast.expr, names: Mapping[str, object]) -> Any:
    match node:
        case ast.Constant(value=value) if value is not ...:
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Tuple(elts=items):
            return tuple(_items(items, names))
        case ast.List(elts=items):
            return list(_items(items, names))
        case ast.Set(elts=items):
            return set(_items(items, names))
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return dict(part for key, value in pairs for part in _pairs(key, value, names))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](evaluate(operand, names))
        case ast.BinOp(left=left, op=op, right=right):
            one, other = evaluate(left, names), evaluate(right, names)
            _require_small_result(op, one, other)
            return _BINARY[type(op)](one, other)
        case ast.Subscript(value=held, slice=ast.Slice() as part):
            ends = [None if end is None else evaluate(end, names) for end in (part.lower, part.upper, part.step)]
            return evaluate(held, names)[slice(*ends)]
        case ast.Subscript(value=held, slice=place):
            return evaluate(held, names)[evaluate(place, names)]
        case ast.JoinedStr(values=parts):
            return "".join(str(evaluate(part, names)) for part in parts)
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            return str(evaluate(value, names))
        case ast.Call():
            return _call(node, names)
        case ast.ListComp(elt=made, generators=[loop]):
            return [evaluate(made, inner) for inner in _bindings_per_round(loop, names)]
        case ast.SetComp(elt=made, generators=[loop]):
            return {evaluate(made, inner) for inner in _bindings_per_round(loop, names)}
        case ast.DictComp(key=key, value=value, generators=[loop]):
            return {evaluate(key, inner): evaluate(value, inner) for inner in _bindings_per_round(loop, names)}
    raise NotConstant(f"line {node.lineno}: {type(node).__name__}")


def bind(target: ast.expr, value: Any) -> dict[str, object]:
    """Return what a loop's target binds in one iteration. Raises NotConstant if the value does not fit the target."""
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, str | list | tuple):
        if len(target.elts) != len(value):
            raise NotConstant(f"line {target.lineno}: as many values as names, or a name for the rest")
        inner = [bind(part, item) for part, item in zip(target.elts, value, strict=True)]
        return {name: found for names in inner for name, found in names.items()}
    raise NotConstant(f"line {target.lineno}: another kind of target")


def _bindings_per_round(loop: ast.comprehension, names: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    if loop.ifs or loop.is_async:
        raise NotConstant("a loop with conditions")
    for item in _bounded(list(evaluate(loop.iter, names))):
        yield {**names, **bind(loop.target, item)}


def _call(node: ast.Call, names: Mapping[str, object]) -> Any:
    arguments = list(_items(node.args, names))
    more = {keyword.arg: evaluate(keyword.value, names) for keyword in node.keywords if keyword.arg}
    if len(more) != len(node.keywords):
        raise NotConstant(f"line {node.lineno}: arguments of a mapping")
    if ast.unparse(node.func) == "pytest.approx" and len(arguments) == 1 and more.keys() <= {"rel", "abs"}:
        return near(arguments[0], **more)
    if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and node.func.id not in names:
        if node.func.id == "bytes" and any(isinstance(size, int) for size in arguments):
            raise NotConstant(f"line {node.lineno}: may be of any size")
        return _FUNCTIONS[node.func.id](*arguments, **more)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        held = evaluate(node.func.value, names)
        if type(held) in _CONTAINERS:
            return getattr(held, node.func.attr)(*arguments, **more)
    raise NotConstant(f"line {node.lineno}: a function that may depend on anything")


def _items(nodes: Iterable[ast.expr], names: Mapping[str, object]) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, ast.Starred):
            yield from evaluate(node.value, names)
        else:
            yield evaluate(node, names)


def _pairs(key: ast.expr | None, value: ast.expr, names: Mapping[str, object]) -> list[tuple[Any, Any]]:
    found = evaluate(value, names)
    return [(evaluate(key, names), found)] if key is not None else list(found.items())


def _require_small_result(op: ast.operator, one: Any, other: Any) -> None:
    """Raise NotConstant before an operation whose result would be large, because computing it would also take long."""
    if isinstance(op, ast.Mult):
        for held, count in ((one, other), (other, one)):
            if isinstance(held, _CONTAINERS) and len(held) * count > LARGEST:
                raise NotConstant("too large")
    if isinstance(op, ast.LShift) and other > LARGEST:
        raise NotConstant("too large")
    if isinstance(op, ast.Pow) and isinstance(one, int) and one.bit_length() * other > LARGEST:
        raise NotConstant("too large")
    if isinstance(op, ast.Mod) and isinstance(one, str | bytes):
        raise NotConstant("a format may be of any width")


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > LARGEST:
        raise NotConstant("too large")
    if isinstance(value, (*_CONTAINERS, range)) and len(value) > LARGEST:
        raise NotConstant("too large")
    return value
