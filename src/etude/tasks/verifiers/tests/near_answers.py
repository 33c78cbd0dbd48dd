"""Finds ways to guess an expected value from the unsolved code's answer, such as adding 1 to the answer. Whoever
roughly knows the bug tries such values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from etude.tasks.verifiers.tests.chances import (
    FLOOR,
    MOST_ITEMS,
    PART,
    STEP,
    TURNED,
    Ways,
    chance_of,
    chance_of_items,
    digits_of,
    item_ways,
    of_size,
)
from etude.tasks.verifiers.tests.known_text import KnownText

_FACTORS = (2, 3, 4, 5, 10, 100, 1000)
_DIGITS = re.compile(r"(\d{1,18})")
_SEPARATORS = re.compile(r"[\W_]+")
_EXACT = 10**15
"""From this size on, integers are compared only by their difference, and floats not at all."""
_LONGEST = 500
"""Lists of different lengths are compared as sets only if they have fewer items together than this."""


def near(value: Any, answer: Any, known: KnownText, askers: Sequence[str] = ()) -> Iterator[tuple[str, float]]:
    """Yield the ways to get `value` by changing `answer`, the unsolved code's result: a label, and the chance that
    somebody thinks of it. `askers` names the functions that compute each item of a list, if they are known."""
    if isinstance(value, bool) or isinstance(answer, bool):
        if value is (not answer):
            yield "not", 0.5
    elif isinstance(value, int | float) and isinstance(answer, int | float):
        yield from _near_number(value, answer, known)
    elif isinstance(value, str) and isinstance(answer, str):
        yield from _near_text(value, answer, known)
    elif type(value) is type(answer) and isinstance(value, list | tuple):
        yield from _near_list(list(value), list(answer), known, askers)
    elif type(value) is type(answer) and isinstance(value, dict):
        yield from _near_list(list(value.items()), list(answer.items()), known, askers)
        if list(value) == list(answer):
            yield from _near_list(list(value.values()), list(answer.values()), known, askers)
    elif isinstance(value, set | frozenset) and isinstance(answer, set | frozenset):
        yield from _near_list(sorted(value, key=repr), sorted(answer, key=repr), known)
    elif _is_of_another_kind(value, answer):
        yield "kind", TURNED


def _is_of_another_kind(value: Any, answer: Any) -> bool:
    """Return whether a value is the unsolved code's answer in another type: as a text or number, as a list or tuple of
    the same items, or as the only item of a list or tuple."""
    if isinstance(value, list | tuple) and isinstance(answer, list | tuple | set):
        return list(value) == list(answer)
    return str(value) == str(answer) or value in ([answer], (answer,))


def _near_number(value: float, answer: float, known: KnownText) -> Iterator[tuple[str, float]]:
    if not (abs(value) < _EXACT and abs(answer) < _EXACT):
        if type(value) is type(answer) is int and abs(value - answer) < _EXACT:
            yield f"{value - answer:+}", max(FLOOR, of_size(abs(value - answer) - 1))
        return
    step = round(value - answer, 9)
    sure = STEP if known.knows(step) else FLOOR
    yield f"{step:+.9g}", max(sure, of_size(digits_of(step) - 1))
    if value == -answer:
        yield "negated", TURNED
    for factor in (value / answer, answer / value) if value and answer else ():
        if factor in _FACTORS or known.knows(factor):
            yield f"times {value / answer:.9g}", STEP
    if value in (math.floor(answer), math.ceil(answer), *(round(answer, places) for places in range(4))):
        yield "rounded", TURNED


def _near_text(value: str, answer: str, known: KnownText) -> Iterator[tuple[str, float]]:
    for label, form in (
        ("case", str.casefold),
        ("space", lambda text: "".join(text.split())),
        ("separators", lambda text: _SEPARATORS.sub("", text)),
    ):
        if form(value) == form(answer):
            yield label, TURNED
    if value == answer[::-1]:
        yield "reversed", TURNED
    mine, others = _DIGITS.split(value), _DIGITS.split(answer)
    if mine[::2] == others[::2] and len(mine) > 1:
        yield from _near_list(list(map(int, mine[1::2])), list(map(int, others[1::2])), known)
    yield from _edit(value, answer, lambda new: PART if known.knows(new) else chance_of(new, known))


def _near_list(
    value: list[Any], answer: list[Any], known: KnownText, askers: Sequence[str] = ()
) -> Iterator[tuple[str, float]]:
    if len(value) == len(answer):
        if value != answer:
            first = next(place for place, right in enumerate(value) if right != answer[place])
            part = slice(first if len(value) > MOST_ITEMS else 0, first + MOST_ITEMS)
            yield from _changed_items(value[part], answer[part], known, askers[part])
        if sorted(map(repr, value)) == sorted(map(repr, answer)):
            usual = value in (answer[::-1], _sorted(answer), _sorted(answer)[::-1])
            yield "order", TURNED if usual else max(FLOOR, 1 / math.factorial(min(len(value), 7)))
    elif len(value) + len(answer) < _LONGEST and _have_the_same_items(value, answer):
        yield "doubles", TURNED

    def chance_of_new(new: list[Any]) -> float:
        return math.prod(max(item_ways(item, known).values()) for item in new[:MOST_ITEMS])

    yield from _edit(value, answer, chance_of_new)


def _have_the_same_items(one: list[Any], other: list[Any]) -> bool:
    return all(item in other for item in one) and all(item in one for item in other)


def _changed_items(
    value: list[Any], answer: list[Any], known: KnownText, askers: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """Yield the ways to guess which items of the unsolved code's list are wrong, and what each should be: a label, and
    the chance that somebody thinks of it."""
    items: list[Ways] = [
        {"same": 1.0} if right == wrong else {**item_ways(right, known), **dict(near(right, wrong, known))}
        for right, wrong in zip(value, answer, strict=True)
    ]
    changed = [ways for ways in items if "same" not in ways]
    if len(changed) == len(value):
        # One guess about all items, which serves other values too.
        for label in set.intersection(*map(set, changed)):
            yield label, max(ways[label] for ways in changed)
    labels = sorted({max(ways, key=lambda label: ways[label]) for ways in changed})
    yield f"items {labels}", max(FLOOR, chance_of_items(items, askers))


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=repr)


def _edit(value: Any, answer: Any, chance_of_new: Callable[[Any], float]) -> Iterator[tuple[str, float]]:
    """Yield the way to get `value` from `answer` by leaving out, adding or replacing one part of this text or list: a
    label, and the chance that somebody thinks of it."""
    shorter = min(len(value), len(answer))
    start = next((at for at in range(shorter) if value[at] != answer[at]), shorter)
    rest = shorter - start
    end = next((at for at in range(rest) if value[-1 - at] != answer[-1 - at]), rest)
    if not start and not end:
        return
    gone, new = answer[start : len(answer) - end], value[start : len(value) - end]
    place = PART if not start or not end else 1 / min(len(answer) + 1, 16)
    chance = PART * PART * place / (1 + len(gone)) * (chance_of_new(new) if new else 1.0)
    yield f"edit {start if start < 2 else 'end' if not end else 'in'} {gone!r} {new!r}", max(FLOOR, chance)
