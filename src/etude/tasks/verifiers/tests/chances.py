"""The probability of guessing a value that a suite withholds: more for small, usual and known values."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etude.tasks.verifiers.tests.known_text import KnownText

FLOOR = 1e-3
"""Chance of a value that nothing makes likelier."""
DEFAULT = 0.25
"""Chance of the values that code returns by default: 0, 1, -1, and empty ones. `None` and booleans have 0.5."""
PART = 0.5
"""Chance that a known value is an item of a list, or a known word a part of a text: it may be any of the known ones."""
STEP = 1 / 32
"""Chance that a number is the unsolved answer plus, minus, times or divided by a known number."""
TURNED = 1 / 8
"""Chance of each usual operation on the unsolved answer: its negation, its text, another case, order or rounding."""
NO_WAY = 1e-12
_PIECES = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")

Ways = Mapping[str, float]
"""The ways to guess one value: by label, the chance of each."""


def chance_of_all(values: Iterable[Ways]) -> float:
    """Return the probability of guessing all of these values. Known ones cost nothing."""
    unknown = [ways for ways in values if "known" not in ways]
    alone = math.prod(max(ways.values()) for ways in unknown)
    return max(alone, shared(unknown))


def chance_of(value: object, known: KnownText) -> float:
    """Return the probability of guessing a value without regard to the unsolved code's answer."""
    if known.knows(value):
        return 1.0
    if is_default(value):
        return 0.5 if value is None or isinstance(value, bool) else DEFAULT
    if isinstance(value, int | float):
        return of_size(digits_of(value))
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        parts = [PART if known.knows_word(part) else _of_piece(part) for part in _PIECES.findall(value)]
        return max(FLOOR, min(DEFAULT, math.prod(parts)))
    if isinstance(value, list | tuple | dict | set | frozenset):
        # One factor for the number of items, and one for each known item: it could be another. Their order is not
        # counted, since it is often that of the input.
        items = {repr(item): item for item in _items(value)}
        shown = {text for text, item in items.items() if known.knows(item)}
        rest = [{f"= {text}": chance_of(items[text], known)} for text in map(repr, _items(value)) if text not in shown]
        return max(FLOOR, PART ** (1 + len(shown)) * chance_of_all(rest))
    return FLOOR


def is_default(value: object) -> bool:
    """Return whether code often returns this value for want of a better one."""
    empty = isinstance(value, str | bytes | list | tuple | dict | set | frozenset) and not value
    return value is None or isinstance(value, bool) or value in (0, 1, -1) or empty


def shared(values: Sequence[Ways]) -> float:
    """Return the chance if each label is guessed once, and then which value it belongs to. Labels are chosen one by
    one, always the one that is cheapest per value."""
    left, chance, counts = list(values), 1.0, Counter[str]()
    while left and chance > NO_WAY:
        served = Counter(label for ways in left for label in ways)
        chances = {label: max(ways.get(label, 0.0) for ways in left) for label in served}
        label = max(served, key=lambda label: chances[label] ** (1 / served[label]))
        counts[label] = served[label]
        chance *= chances[label]
        left = [ways for ways in left if label not in ways]
    orders = math.lgamma(counts.total() + 1) - sum(math.lgamma(count + 1) for count in counts.values())
    return chance * math.exp(-orders)


def item_ways(item: object, known: KnownText) -> Ways:
    return {f"= {item!r}": PART if known.knows(item) else chance_of(item, known)}


def _items(value: Any) -> list[object]:
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)


def of_size(size: float) -> float:
    """Return the chance of a number of this size: small numbers are likelier."""
    return max(FLOOR, 1 / (2 * (size + 2)))


def digits_of(value: float) -> float:
    """Return a number's size, or that of its digits without the point."""
    if isinstance(value, int):
        return min(abs(value), 10**9)
    if not math.isfinite(value):
        return 0
    return float(re.sub(r"[.-]|e.*", "", repr(value))[:9])


def _of_piece(piece: str) -> float:
    if piece.isdecimal():
        return of_size(min(int(piece[:9]), 10**9))
    return max(FLOOR, 2.0 ** (-3 * len(piece)))
