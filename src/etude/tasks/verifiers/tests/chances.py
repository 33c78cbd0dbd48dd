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
MOST_ITEMS = 200
"""Number of items by which a list is priced. Further ones could only make it less likely."""
_PIECES = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")

Ways = Mapping[str, float]
"""The ways to guess one value: by label, the chance of each."""


def chance_of_all(values: Iterable[Ways]) -> float:
    """Return the probability of guessing all of these values. Known ones cost nothing. Nor does it cost anything which
    guess serves which value: whoever guesses sees which function each assertion calls."""
    unknown = [ways for ways in values if "known" not in ways]
    alone = math.prod(max(ways.values()) for ways in unknown)
    return max(NO_WAY, alone, shared(unknown)[0])


def chance_of(value: object, known: KnownText, askers: Sequence[str] = ()) -> float:
    """Return the probability of guessing a value without regard to the unsolved code's answer. `askers` names the
    functions that compute each item of a list, if they are known."""
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
        # One factor for the number of items, and one for each known item: it could be another. The order of known items
        # is not counted, since it is often that of the input.
        items = _items(value)[:MOST_ITEMS]
        shown = {text for text, item in {repr(item): item for item in items}.items() if known.knows(item)}
        rest = [place for place, item in enumerate(items) if repr(item) not in shown]
        ways = [{f"= {items[place]!r}": chance_of(items[place], known)} for place in rest]
        by = [askers[place] for place in rest] if isinstance(value, list | tuple) and askers else ()
        return max(FLOOR, PART ** (1 + len(shown)) * chance_of_items(ways, by))
    return FLOOR


def is_default(value: object) -> bool:
    """Return whether code often returns this value for want of a better one."""
    empty = isinstance(value, str | bytes | list | tuple | dict | set | frozenset) and not value
    return value is None or isinstance(value, bool) or value in (0, 1, -1) or empty


def shared(values: Sequence[Ways]) -> tuple[float, list[str]]:
    """Return the chance if each label is guessed once and serves all values that have it, and the label that serves
    each value. Labels are chosen one by one, always the one that is cheapest per value."""
    chance, labels = 1.0, [""] * len(values)
    left = dict(enumerate(values))
    while left and chance > NO_WAY:
        served, chances = Counter[str](), dict[str, float]()
        for ways in left.values():
            for label, one in ways.items():
                served[label] += 1
                chances[label] = max(one, chances.get(label, 0.0))
        label = max(served, key=lambda label: chances[label] ** (1 / served[label]))
        chance *= chances[label]
        for place in [place for place, ways in left.items() if label in ways]:
            labels[place] = label
            del left[place]
    return chance, labels


def chance_of_items(items: Sequence[Ways], askers: Sequence[str]) -> float:
    """Return the probability of guessing all items of a list. Those that are as in the unsolved answer have the one
    label "same", and which they are has to be guessed."""
    alone = math.prod(max(ways.values()) for ways in items)
    together, labels = shared(items)
    is_same = ["same" if "same" in ways else "" for ways in items]
    return max(alone * _chance_of_order(is_same, askers), together * _chance_of_order(labels, askers))


def _chance_of_order(labels: Sequence[str], askers: Sequence[str]) -> float:
    """Return the chance of guessing which item of a list has which label, if it is known how often each occurs.
    `askers` names the functions that compute each item; none stand for a single function. Whoever guesses sees them, so
    only the order among the items of one function counts."""
    of_each: dict[str, Counter[str]] = {}
    for label, asker in zip(labels, askers or [""] * len(labels), strict=True):
        of_each.setdefault(asker, Counter())[label] += 1
    orders = sum(
        math.lgamma(counts.total() + 1) - sum(math.lgamma(count + 1) for count in counts.values())
        for counts in of_each.values()
    )
    return math.exp(-orders)


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
