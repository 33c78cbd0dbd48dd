"""Makes altered values for negative controls: copies of a test that expect a wrong value of the same form, and must
fail.

All values made for one original differ from it and from each other at one position. The original has no special place
among them, such as the middle of a range, so seeing all versions does not reveal the right one.
"""

from __future__ import annotations

import builtins
import math
import random
import string
from decimal import Decimal

_EXCEPTIONS = ("ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError", "ZeroDivisionError", "OSError")
_CLASSES = (string.digits, string.ascii_uppercase, string.ascii_lowercase)


def alternatives(value: object, count: int, rng: random.Random) -> list[object]:
    """Return up to `count` other values of the same type; none for types that cannot be altered."""
    if isinstance(value, bool):
        found: list[object] = [not value]
    elif isinstance(value, int):
        found = list(_window(value, count, rng))
    elif isinstance(value, float) and math.isfinite(value):
        exact = Decimal(repr(value))
        step = Decimal(1).scaleb(int(exact.as_tuple().exponent))
        found = [float(exact + step * shift) for shift in _window(0, count, rng, negative=True)]
        found = [other for other in found if isinstance(other, float) and math.isfinite(other)]
    elif isinstance(value, str):
        found = _texts(value, rng)
    elif isinstance(value, bytes):
        found = [text.encode("latin-1") for text in map(str, _texts(value.decode("latin-1"), rng))]
    elif isinstance(value, list | tuple):
        rows = _rows(list(value), count, rng)
        found = [row if isinstance(value, list) else tuple(row) for row in rows]
    elif isinstance(value, dict) and value:
        key = rng.choice(list(value))
        found = [{**value, key: other} for other in alternatives(value[key], count, rng)]
    elif isinstance(value, set | frozenset):
        found = [set(row) for row in _rows(sorted(value, key=repr), count, rng)]
    else:
        found = []
    found = [other for other in {repr(other): other for other in found}.values() if other != value]
    return rng.sample(found, min(count, len(found)))


def other_exceptions(name: str) -> list[str]:
    """Return built-in exceptions that are neither subclasses nor bases of the named one; none if it is not built in."""
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return []
    others = [(other, getattr(builtins, other)) for other in _EXCEPTIONS]
    return [other for other, found in others if not issubclass(found, kind) and not issubclass(kind, found)]


def _window(value: int, count: int, rng: random.Random, *, negative: bool = False) -> list[int]:
    """Return integers near `value`, from a range in which `value` itself has a random place. Without `negative`, they
    do not have the opposite sign of `value`, and the range for a small `value` starts at 0."""
    width = count + 8
    size, sign = (value, 1) if negative else (abs(value), -1 if value < 0 else 1)
    # For numbers up to the width, the window always starts at 0; else small numbers would be near its lower end.
    lowest = 0 if not negative and size <= width else size - rng.randint(0, width)
    return [sign * other for other in range(lowest, lowest + width + 1) if other != size]


def _texts(value: str, rng: random.Random) -> list[object]:
    """Return copies of a text with one character replaced by others of its class: digits, upper case or lower case. A
    digit is replaced if there is one, because misspelt words are easy to recognise."""
    for group in _CLASSES:
        if places := [place for place, character in enumerate(value) if character in group]:
            place = rng.choice(places)
            return [value[:place] + other + value[place + 1 :] for other in group if other != value[place]]
    return [value + "-"]


def _rows(items: list[object], count: int, rng: random.Random) -> list[list[object]]:
    """Return copies with one item replaced. If that item cannot be altered, return a shorter and a longer list."""
    if not items:
        return [[0], [1], [""], [None]]
    place = rng.randrange(len(items))
    changed = [[*items[:place], other, *items[place + 1 :]] for other in alternatives(items[place], count, rng)]
    return changed or [items[:-1], [*items, items[-1]]]
