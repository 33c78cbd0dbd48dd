"""Evaluates constant Python expressions: literals, operators, and calls of pure builtin functions.

None of the test's code is run: the evaluation walks the syntax tree, and any unknown node raises `NotConstant`. Time
and memory are bounded for any source: what would be large is not computed, and the number of steps is limited.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from etude.tasks.verifiers.tests.approximate import near

LARGEST = 10_000
"""Maximum number of an integer's bits."""
MOST = 100_000
"""Maximum size of a value: the number of its items, at any depth, plus their characters and integers' hex digits."""
_DEEPEST = 50
"""Maximum depth to which lists, dictionaries and other containers may be nested in a value."""
_STEPS = 5 * MOST
"""Default number of steps, the unit in which an Evaluator counts its work. A step takes less than a microsecond."""
_STEPS_PER_NODE = 16
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
_TEXT_CODECS = frozenset(("utf-8", "utf8", "ascii", "latin-1", "latin1", "strict", "ignore", "replace"))
"""Arguments of `encode` and `decode`. Some other codecs, such as punycode, take quadratic time."""
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


class Evaluator:
    """Evaluates expressions. All evaluations together may take at most `steps`, the unit in which work is counted."""

    def __init__(self, steps: int = _STEPS) -> None:
        self._left = steps

    def evaluate(self, node: ast.expr, names: Mapping[str, object]) -> Any:
        """Return the value of an expression. Raises NotConstant if it is not constant, or if its evaluation takes too
        much. `names` maps names to their known values. The caller must make sure that the code does not rebind
        builtins."""
        self._take(1 if isinstance(node, ast.Constant) else _STEPS_PER_NODE)
        try:
            value = self._value(node, names)
            if not isinstance(node, ast.Name):
                self._take(_size(value))
            return value
        except NotConstant:
            raise
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            raise NotConstant(f"line {node.lineno}: {error}") from error

    def _take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise NotConstant("takes too much")

    def _value(self, node: ast.expr, names: Mapping[str, object]) -> Any:
        match node:
            case ast.Constant(value=value) if value is not ...:
                return value
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Tuple(elts=items):
                return tuple(self._items(items, names))
            case ast.List(elts=items):
                return list(self._items(items, names))
            case ast.Set(elts=items):
                return set(self._hashed(self._items(items, names)))
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return dict(self._hashed(part for key, value in pairs for part in self._pairs(key, value, names)))
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self.evaluate(operand, names))
            case ast.BinOp(left=left, op=op, right=right):
                one, other = self.evaluate(left, names), self.evaluate(right, names)
                if isinstance(one, set | frozenset | dict):
                    self._hashed([*one, *other])
                _require_small_result(op, one, other)
                return _BINARY[type(op)](one, other)
            case ast.Subscript(value=held, slice=ast.Slice() as part):
                ends = [
                    None if end is None else self.evaluate(end, names) for end in (part.lower, part.upper, part.step)
                ]
                return self.evaluate(held, names)[slice(*ends)]
            case ast.Subscript(value=held, slice=place):
                return self.evaluate(held, names)[self.evaluate(place, names)]
            case ast.JoinedStr(values=parts):
                return "".join(str(self.evaluate(part, names)) for part in parts)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return str(self.evaluate(value, names))
            case ast.Call():
                return self._call(node, names)
            case ast.ListComp(elt=made, generators=[loop]):
                return [self.evaluate(made, inner) for inner in self._bindings_per_round(loop, names)]
            case ast.SetComp(elt=made, generators=[loop]):
                rounds = self._bindings_per_round(loop, names)
                return set(self._hashed(self.evaluate(made, inner) for inner in rounds))
            case ast.DictComp(key=key, value=value, generators=[loop]):
                rounds = self._bindings_per_round(loop, names)
                return dict(self._hashed((self.evaluate(key, inner), self.evaluate(value, inner)) for inner in rounds))
        raise NotConstant(f"line {node.lineno}: {type(node).__name__}")

    def _call(self, node: ast.Call, names: Mapping[str, object]) -> Any:
        arguments = list(self._items(node.args, names))
        more = {keyword.arg: self.evaluate(keyword.value, names) for keyword in node.keywords if keyword.arg}
        if len(more) != len(node.keywords):
            raise NotConstant(f"line {node.lineno}: arguments of a mapping")
        given = [*arguments, *more.values()]
        match node.func:
            case ast.Attribute(value=ast.Name(id="pytest"), attr="approx") if len(arguments) == 1:
                if any(isinstance(tolerance, _CONTAINERS) for tolerance in more.values()):
                    raise NotConstant(f"line {node.lineno}: a tolerance that is no number")
                return near(arguments[0], **more)
            case ast.Name(id=name) if name in _FUNCTIONS and name not in names:
                _require_small_call(name, given)
                if name in ("set", "frozenset", "dict"):
                    self._hashed(*arguments)
                return _FUNCTIONS[name](*arguments, **more)
            case ast.Attribute(value=holder, attr=name) if name in _METHODS:
                held = self.evaluate(holder, names)
                if type(held) in _CONTAINERS:
                    _require_small_call(name, [held, *given])
                    return getattr(held, name)(*arguments, **more)
        raise NotConstant(f"line {node.lineno}: a function that may depend on anything")

    def _items(self, nodes: Iterable[ast.expr], names: Mapping[str, object]) -> Iterator[Any]:
        for node in nodes:
            found = self.evaluate(node.value if isinstance(node, ast.Starred) else node, names)
            if isinstance(node, ast.Starred):
                self._take(len(found))
                yield from found
            else:
                yield found

    def _pairs(self, key: ast.expr | None, value: ast.expr, names: Mapping[str, object]) -> list[tuple[Any, Any]]:
        found = self.evaluate(value, names)
        if key is not None:
            return [(self.evaluate(key, names), found)]
        self._take(len(found))
        return list(found.items())

    def _hashed(self, items: Iterable[Any] = ()) -> list[Any]:
        """Return a list of the items of a set or dictionary that will be built, and charge the steps for building it.
        They are quadratic in the number of items, since a hostile source can give all items the same hash."""
        found = list(items)
        self._take(len(found) ** 2 // 16)
        return found

    def _bindings_per_round(
        self, loop: ast.comprehension, names: Mapping[str, object]
    ) -> Iterator[Mapping[str, object]]:
        if loop.ifs or loop.is_async:
            raise NotConstant("a loop with conditions")
        for item in list(self.evaluate(loop.iter, names)):
            self._take(_STEPS_PER_NODE + len(names) // 16)
            yield {**names, **bind(loop.target, item)}


def evaluate(node: ast.expr, names: Mapping[str, object]) -> Any:
    """Return the value of a single expression, as `Evaluator.evaluate` does."""
    return Evaluator().evaluate(node, names)


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


def _require_small_result(op: ast.operator, one: Any, other: Any) -> None:
    """Raise NotConstant before an operation whose result would be large, because computing it would also take long."""
    if isinstance(op, ast.Mult):
        for held, count in ((one, other), (other, one)):
            if isinstance(held, _CONTAINERS) and isinstance(count, int) and _size(held) * count > MOST:
                raise NotConstant("too large")
    if isinstance(op, ast.LShift) and other > LARGEST:
        raise NotConstant("too large")
    if (
        isinstance(op, ast.Pow)
        and isinstance(one, int)
        and isinstance(other, int)
        and one.bit_length() * other > LARGEST
    ):
        raise NotConstant("too large")
    if isinstance(op, ast.Mod) and isinstance(one, str | bytes):
        raise NotConstant("a format may be of any width")


def _require_small_call(name: str, given: Sequence[Any]) -> None:
    """Raise NotConstant before a call that may take long. `name` is the function or method; `given` has its arguments.
    For a method, the object that it is called on comes first."""
    sizes, rest = [_size(value) for value in given], given[1:]
    if sum(sizes) > MOST or (name in _METHODS and math.prod(sizes) > 10 * MOST):
        raise NotConstant("too large")
    if name == "sum" and any(isinstance(start, _CONTAINERS) for start in rest):
        raise NotConstant("a sum of lists takes quadratic time")
    if name == "bytes" and any(isinstance(size, int) for size in given):
        raise NotConstant("may be of any size")
    if name == "round" and any(abs(digits) > LARGEST for digits in rest):
        raise NotConstant("computes a power of ten")
    if name in ("encode", "decode", "bytes", "str") and not _TEXT_CODECS.issuperset(rest):
        raise NotConstant("a codec that may take long")


def _size(value: object) -> int:
    """Return the size of a value: the number of its items, at any depth, plus their characters and integers' hex
    digits. Raises NotConstant if that is more than `MOST`."""
    size, level = 1, [value]
    for _ in range(_DEEPEST):
        size += sum(map(_own_size, level))
        if size > MOST:
            raise NotConstant("too large")
        level = [item for part in level if isinstance(part, Collection) for item in _items_in(part)]
        if not level:
            return size
    raise NotConstant("too deep")


def _own_size(part: object) -> int:
    if isinstance(part, int):
        if part.bit_length() > LARGEST:
            raise NotConstant("too large")
        return part.bit_length() // 4
    return len(part) if isinstance(part, Sized) else 0


def _items_in(part: Collection[object]) -> Iterable[object]:
    if isinstance(part, str | bytes | range):
        return ()
    return [*part, *part.values()] if isinstance(part, Mapping) else part
