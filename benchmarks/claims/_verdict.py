"""Whether rows bear out what a claim says: each part of its sentence is a figure, and its whole interval decides.

Invariant: "shown" means that the intervals of all parts lie on the side that the sentence names, on all seeds. What
only must not get worse (or need not get better) is told by a word of its own, since an interval around nothing tells of
no difference that it could have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SEEDS = (1, 2, 3)
"""Of every claim; fewer decide nothing."""


class Verdict(StrEnum):
    OPPOSITE = "the opposite"
    """An interval lies wholly on the other side, or a run that was to hold came apart."""
    TOO_FEW = "too few seeds"
    NOT_SHOWN = "not shown"
    SHOWN = "shown"
    NO_GAIN = "no gain shown"
    NO_LOSS = "no loss shown"


_OF_ALL = (Verdict.TOO_FEW, Verdict.OPPOSITE, Verdict.NOT_SHOWN)
"""One part that says so says it of the whole claim; the first of these that any says."""
Part = Callable[[Mapping[str, Any]], Verdict | None]
"""From what was concluded; None while its figure is missing."""


def verdict(parts: Sequence[Part], found: Mapping[str, Any], seeds: int) -> str | None:
    """`seeds`: those of which every arm has a row. What parts say that do not agree is told with a semicolon."""
    if any(isinstance(part, NoneEnded) and part(found) is Verdict.OPPOSITE for part in parts):
        return Verdict.OPPOSITE  # with one seed as with many, and though its runs have no other figures
    said = [part(found) for part in parts]
    known = {one for one in said if one is not None}
    if not said or None in said:
        return None
    if seeds < len(SEEDS):
        return Verdict.TOO_FEW
    whole = next((one for one in _OF_ALL if one in known), None)
    return whole or "; ".join(one for one in Verdict if one in known)


def above(key: str, none: float = 0.0) -> Part:
    """`none` is the figure of no effect: 0 of differences, 1 of ratios."""
    return _Side(key, none, 1)


def below(key: str, none: float = 0.0) -> Part:
    return _Side(key, none, -1)


def not_below(key: str, none: float = 0.0) -> Part:
    return _NotBeyond(_Side(key, none, -1), Verdict.NO_LOSS)


def not_above(key: str, none: float = 0.0) -> Part:
    return _NotBeyond(_Side(key, none, 1), Verdict.NO_GAIN)


@dataclass(frozen=True, slots=True)
class Within:
    """The difference is smaller than what another figure says that chance makes."""

    key: str
    bound: str

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        if found[self.key] is None:
            return None
        ends, bound = found[f"{self.key}_ci"], found[self.bound]
        if ends is None or bound is None:
            return Verdict.TOO_FEW
        low, high = ends
        if low > bound or high < -bound:
            return Verdict.OPPOSITE
        return Verdict.SHOWN if -bound <= low and high <= bound else Verdict.NOT_SHOWN


@dataclass(frozen=True, slots=True)
class Never:
    """A figure that is exactly 0, of all seeds at once."""

    key: str

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        if found[self.key] is None:
            return None
        return Verdict.OPPOSITE if found[self.key] else Verdict.SHOWN


@dataclass(frozen=True, slots=True)
class NoneEnded:
    """None of these arms was ended by its own numbers (`_ended.all_ended`); one that was is enough for the opposite."""

    key: str
    arms: tuple[str, ...]

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        ends = found[self.key]
        if ends is None:
            return None
        return Verdict.OPPOSITE if any(end["arm"] in self.arms for end in ends) else Verdict.SHOWN


@dataclass(frozen=True, slots=True)
class _Side:
    """By the interval over tasks, and where seeds have gains of their own by Student's too: the wider one decides."""

    key: str
    none: float
    sign: int

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        if found[self.key] is None:
            return None
        if found[f"{self.key}_ci"] is None:
            return Verdict.TOO_FEW
        intervals = [found[f"{self.key}_ci"], found.get(f"{self.key}_student_ci")]
        ends = [self.sign * (end - self.none) for interval in intervals if interval for end in interval]
        low, high = min(ends), max(ends)
        if low == high:
            return Verdict.NOT_SHOWN  # figures without any spread, as of one task, say nothing of others
        if low > 0:
            return Verdict.SHOWN
        return Verdict.OPPOSITE if high < 0 else Verdict.NOT_SHOWN


@dataclass(frozen=True, slots=True)
class _NotBeyond:
    side: _Side
    held: Verdict

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        said = self.side(found)
        if said is None or said is Verdict.TOO_FEW:
            return said
        return Verdict.OPPOSITE if said is Verdict.SHOWN else self.held
