"""Whether rows bear out what a claim says: each part of its sentence is a figure, and its whole interval decides.

Invariant: "shown" means that the intervals of all parts lie on the side that the sentence names. What only must not get
worse (or need not get better) is never called shown by itself, since an interval around nothing tells of no difference
that it could have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Of several parts the one that comes first here holds for all."""

    ONE_SEED = "one seed"
    """Which decides nothing, whatever it says."""
    OPPOSITE = "the opposite"
    """An interval lies wholly on the other side."""
    NOT_SHOWN = "not shown"
    SHOWN = "shown"
    NO_GAIN = "no gain shown"
    NO_LOSS = "no loss shown"


Part = Callable[[Mapping[str, Any]], Verdict | None]
"""From what was concluded; None while its figure is missing."""


def verdict(parts: Sequence[Part], found: Mapping[str, Any]) -> Verdict | None:
    said = [part(found) for part in parts]
    known = [one for one in said if one is not None]
    return min(known, key=list(Verdict).index) if known and len(known) == len(said) else None


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
            return Verdict.ONE_SEED
        low, high = ends
        if low > bound or high < -bound:
            return Verdict.OPPOSITE
        return Verdict.SHOWN if -bound <= low and high <= bound else Verdict.NOT_SHOWN


@dataclass(frozen=True, slots=True)
class NoneEnded:
    """None of these arms was ended by its own numbers (`_ended.all_ended`); one that was is enough for the opposite."""

    key: str
    arms: tuple[str, ...]

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        ends = found[self.key]
        if ends is None:
            return None
        return Verdict.OPPOSITE if any(end["arm"] in self.arms for end in ends) else Verdict.NO_LOSS


@dataclass(frozen=True, slots=True)
class _Side:
    key: str
    none: float
    sign: int

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        if found[self.key] is None:
            return None
        if found[f"{self.key}_ci"] is None:
            return Verdict.ONE_SEED
        low, high = sorted(self.sign * (end - self.none) for end in found[f"{self.key}_ci"])
        if low > 0:
            return Verdict.SHOWN
        return Verdict.OPPOSITE if high < 0 else Verdict.NOT_SHOWN


@dataclass(frozen=True, slots=True)
class _NotBeyond:
    side: _Side
    held: Verdict

    def __call__(self, found: Mapping[str, Any]) -> Verdict | None:
        said = self.side(found)
        if said is None or said is Verdict.ONE_SEED:
            return said
        return Verdict.OPPOSITE if said is Verdict.SHOWN else self.held
