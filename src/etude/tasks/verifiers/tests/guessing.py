"""How likely code that solves nothing guesses the values that a suite withholds: expected values that do not enter the
box.

A value may be guessed in several ways, each with a label and a chance: it is known, it is a frequent value, or it is
near the answer of the unsolved code ("that plus 1"). One guess serves every value with its label. So the chance for a
whole suite (chances.py) may be a product over few labels instead of one over all values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from etude.tasks.verifiers.tests.approximate import Near, exactly
from etude.tasks.verifiers.tests.chances import Ways, chance_of, of_size
from etude.tasks.verifiers.tests.known_text import KnownText
from etude.tasks.verifiers.tests.near_answers import near


def ways_of(value: object, unsolved: Iterable[object], known: KnownText, askers: Sequence[str] = ()) -> Ways:
    """Return the ways to guess a withheld value (one that does not enter the box), each with its chance. `unsolved` are
    the answers that the unsolved code gives instead of it. `askers` names the functions that compute each item, if the
    value is a list and they are known."""
    plain = exactly(value)
    if known.knows(plain):
        return {"known": 1.0}
    found = {f"= {plain!r}": _tolerant(value, known, askers)}
    for answer in unsolved:
        for label, chance in near(plain, answer, known, askers):
            found[label] = max(chance, found.get(label, 0.0))
    return found


def askers_of(compared: bytes, value: object) -> list[str]:
    """Return the names of the functions that compute each item of an expected list, if the compared expression spells
    out a list. If that list cannot be matched to the items, each item gets a made-up name. If no list is spelt out, one
    function computes all items, and the result is empty."""
    if not isinstance(value, list | tuple | dict):
        return []
    try:
        node = ast.parse(b"(" + compared + b"\n)", mode="eval").body
        items = getattr(node, "elts", getattr(node, "values", []))
        if not items or len(items) == len(value):
            return list(map(_called, items))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if not compared.lstrip().startswith((b"[", b"{")):
            return []
    # A list in another language, or of several lists: each item counts as that of another function.
    return list(map(str, range(len(value))))


def _called(item: ast.expr | None) -> str:
    """Return the names of the functions and keyword arguments of all calls in an expression, joined into one text."""
    calls = [node for node in ast.walk(item) if isinstance(node, ast.Call)] if item else []
    called = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
    return " ".join(sorted({*called, *(str(keyword.arg) for call in calls for keyword in call.keywords)}))


def answers_of(texts: Iterable[object]) -> list[object]:
    """Return the values that a run has reported, as far as they can be read."""
    found = []
    for text in texts:
        try:
            found.append(ast.literal_eval(str(text)))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return found


def _tolerant(value: object, known: KnownText, askers: Sequence[str]) -> float:
    """Return the chance of guessing a value without the unsolved code's answer. A number with a tolerance counts as a
    smaller number, which is likelier: the wider the tolerance, the smaller."""
    if isinstance(value, Near) and value.within:
        return max(chance_of(value.number, known), of_size(abs(value.number) / (2 * value.within)))
    return chance_of(exactly(value), known, askers)
