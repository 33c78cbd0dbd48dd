"""The probability of guessing an expected value that a test suite withholds from the box. It is higher for small, usual
and known values (those that the code under test can read)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etude.tasks.verifiers.tests.known_text import KnownText

FLOOR = 1e-3
"""Chance of guessing a value that nothing makes likelier."""
DEFAULT = 0.25
"""Chance of guessing a value that code often returns by default: 0, 1, -1 or an empty one. For `None` and booleans it
is 0.5."""
PART = 0.5
"""Chance of guessing one part of a value (an item of a list, a word of a text) if the part is known. It is below 1,
because any other known value or word could be in its place."""
STEP = 1 / 32
"""Chance of guessing a number that is the unsolved code's answer plus or minus a known number, or times or divided by a
known number or a usual factor."""
TURNED = 1 / 8
"""Chance of guessing a value that a usual operation makes of the unsolved code's answer: its negation, its text,
another case, order or rounding."""
NO_WAY = 1e-12
MOST_ITEMS = 200
"""Maximum number of a list's items that count for the chance of guessing it. More items could only lower the chance."""
_PIECES = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")

Ways = Mapping[str, float]
"""The ways to guess one value: maps the label of each guess to the chance that it is right."""


def chance_of_all(values: Iterable[Ways]) -> float:
    """Return the probability of guessing all of these values. Known values (with the label "known") count as guessed.
    One guess may serve several values. That it must be assigned to the right ones does not lower the probability,
    because whoever guesses sees which function each assertion calls."""
    unknown = [ways for ways in values if "known" not in ways]
    alone = math.prod(max(ways.values()) for ways in unknown)
    return max(NO_WAY, alone, shared(unknown)[0])


def chance_of(value: object, known: KnownText, askers: Sequence[str] = ()) -> float:
    """Return the probability of guessing a value from what the code under test can read (`known`). That the unsolved
    code's answer may be close to the value is not considered here. `askers` names the functions that compute each item
    of a list, if they are known."""
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
    """Return the probability of guessing all values if each label is guessed only once, for all values that have it.
    Also return the label that serves each value. Labels are chosen one by one: always the one with the highest chance
    per value that it serves (as a geometric mean)."""
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
    """Return the probability of guessing all items of a list. Items that equal those of the unsolved code's answer have
    the label "same", which is guessed once for all of them. Which items these are has to be guessed too."""
    alone = math.prod(max(ways.values()) for ways in items)
    together, labels = shared(items)
    is_same = ["same" if "same" in ways else "" for ways in items]
    return max(alone * _chance_of_order(is_same, askers), together * _chance_of_order(labels, askers))


def _chance_of_order(labels: Sequence[str], askers: Sequence[str]) -> float:
    """Return the chance of guessing which item of a list has which label, if it is known how often each label occurs.
    `askers` names the function that computes each item; without names, one function counts as computing them all.
    Whoever guesses sees these functions, so only the order among the items of one function counts."""
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
    """Return the chance of guessing a number of this size. Small numbers are easier to guess."""
    return max(FLOOR, 1 / (2 * (size + 2)))


def digits_of(value: float) -> float:
    """Return an int without its sign, at most 10^9; of a float, the first digits without the point, such as 125 for
    1.25."""
    if isinstance(value, int):
        return min(abs(value), 10**9)
    if not math.isfinite(value):
        return 0
    return float(re.sub(r"[.-]|e.*", "", repr(value))[:9])


def _of_piece(piece: str) -> float:
    if piece.isdecimal():
        return of_size(min(int(piece[:9]), 10**9))
    return max(FLOOR, 2.0 ** (-3 * len(piece)))
