"""Verdicts: whether the rows show what a claim says. Each part of its sentence is a figure, decided by its interval.

Invariant: "shown" means that the whole interval of every part lies on the side that the sentence names, and that all
seeds have rows. A part that only says "not worse" or "not better" has its own verdict, since an interval around zero
does not prove that there is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SEEDS = (1, 2, 3)
"""The seeds of every claim; with fewer, a claim is undecided."""


class Verdict(StrEnum):
    OPPOSITE = "the opposite"
    """A whole interval lies on the other side, or a run that should have lasted ended with non-finite numbers."""
    TOO_FEW = "too few seeds"
    NOT_SHOWN = "not shown"
    SHOWN = "shown"
    NO_GAIN = "no gain shown"
    NO_LOSS = "no loss shown"


_OF_ALL = (Verdict.TOO_FEW, Verdict.OPPOSITE, Verdict.NOT_SHOWN)
"""Verdicts that one part alone decides for the whole claim; the first of these that some part has wins."""
Part = Callable[[Mapping[str, Any]], Verdict | None]
"""Returns the verdict on one part from the concluded figures; None while its figure is missing."""


def verdict(parts: Sequence[Part], found: Mapping[str, Any], seeds: int) -> str | None:
    """Combine the parts' verdicts; differing ones are joined with a semicolon. None while some figure is missing.

    `seeds`: number of seeds for which every arm has a row."""
    if any(isinstance(part, NoneEnded) and part(found) is Verdict.OPPOSITE for part in parts):
        return Verdict.OPPOSITE  # One seed is enough, even if the ended runs have no other figures.
    said = [part(found) for part in parts]
    known = {one for one in said if one is not None}
    if not said or None in said:
        return None
    if seeds < len(SEEDS):
        return Verdict.TOO_FEW
    whole = next((one for one in _OF_ALL if one in known), None)
    return whole or "; ".join(one for one in Verdict if one in known)


def above(key: str, none: float = 0.0) -> Part:
    """The figure is above `none`, the value for no effect: 0 for differences, 1 for ratios."""
    return _Side(key, none, 1)


def below(key: str, none: float = 0.0) -> Part:
    return _Side(key, none, -1)


def not_below(key: str, none: float = 0.0) -> Part:
    return _NotBeyond(_Side(key, none, -1), Verdict.NO_LOSS)


def not_above(key: str, none: float = 0.0) -> Part:
    return _NotBeyond(_Side(key, none, 1), Verdict.NO_GAIN)


@dataclass(frozen=True, slots=True)
class Within:
    """The difference `key` lies within plus or minus another figure, `bound`, such as the noise between seeds."""

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
    """The figure, taken over all seeds, is exactly 0."""

    key: str

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        if found[self.key] is None:
            return None
        return Verdict.OPPOSITE if found[self.key] else Verdict.SHOWN


@dataclass(frozen=True, slots=True)
class NoneEnded:
    """No run of these arms ended with non-finite numbers (`_ended.all_ended`). One that did gives the opposite."""

    key: str
    arms: tuple[str, ...]

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        ends = found[self.key]
        if ends is None:
            return None
        return Verdict.OPPOSITE if any(end["arm"] in self.arms for end in ends) else Verdict.SHOWN


@dataclass(frozen=True, slots=True)
class _Side:
    """The figure lies on one side of `none`. Its bootstrap interval decides, together with Student's interval over
    seeds if there is one."""

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
            return Verdict.NOT_SHOWN  # no spread at all, as with a single task, says nothing about other tasks
        if low > 0:
            return Verdict.SHOWN
        return Verdict.OPPOSITE if high < 0 else Verdict.NOT_SHOWN


@dataclass(frozen=True, slots=True)
class _NotBeyond:
    """The figure does not lie wholly on this side; `held` is the verdict if so."""

    side: _Side
    held: Verdict

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        said = self.side(found)
        if said is None or said is Verdict.TOO_FEW:
            return said
        return Verdict.OPPOSITE if said is Verdict.SHOWN else self.held
