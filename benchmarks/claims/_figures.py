"""From estimates to the keys of a claim's line, and from keys to words: each figure stands beside its 95 % interval.

Invariant: a figure that the rows do not tell is None, its interval too, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from etude.rollout import Estimate, across_seeds


def stated(name: str, estimate: Estimate | None) -> dict[str, Any]:
    """`name` and `name`_ci."""
    return {name: number(estimate), f"{name}_ci": interval(estimate)}


def of_seeds(values: Sequence[float]) -> Estimate | None:
    """Of figures that each seed has one of. One seed alone knows nothing of others: it has no interval."""
    if len(values) == 1:
        return Estimate(values[0], float("nan"), float("nan"), 1)
    return across_seeds(values)


def number(estimate: Estimate | None) -> float | None:
    return None if estimate is None else _rounded(estimate.mean)


def interval(estimate: Estimate | None) -> list[float] | None:
    if estimate is None or estimate.low != estimate.low:
        return None
    return [_rounded(estimate.low), _rounded(estimate.high)]


def _rounded(value: float) -> float:
    """To four places, or where these say little to two digits."""
    return round(value, 4) if abs(value) >= 1e-3 else float(f"{value:.2g}")


def in_tens(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """A curve of [step, value] by the means of ten points each, where one point says little."""
    tens = [curve[first : first + 10] for first in range(0, len(curve), 10)]
    return [(ten[-1][0], fmean(value for _, value in ten)) for ten in tens]


@dataclass(frozen=True, slots=True)
class Told:
    """A figure in words, or several: its interval behind it in square brackets, those of its seeds in round ones."""

    key: str
    text: str
    """With {} where the figure stands."""
    form: str = ".2f"
    times: float = 1.0

    def __call__(self, found: Mapping[str, Any]) -> str:
        if found[self.key] is None:
            return ""
        said, ends = self.text.format(self._shown(found[self.key])), found.get(f"{self.key}_ci")
        if not ends:
            return said
        seeds = found.get(f"{self.key}_by_seed")
        return f"{said} [{self._shown(ends)}]" + (f" ({self._shown(seeds)})" if seeds else "")

    def _shown(self, value: float | Sequence[float]) -> str:
        if isinstance(value, Sequence):
            return ", ".join(map(self._shown, value))
        return format(value * self.times, self.form)


@dataclass(frozen=True, slots=True)
class ToldChange(Told):
    """`key` before and `after`, without intervals: the difference is told by a figure of its own."""

    after: str = ""

    def __call__(self, found: Mapping[str, Any]) -> str:
        if found[self.key] is None:
            return ""
        return self.text.format(f"{self._shown(found[self.key])} \u2192 {self._shown(found[self.after])}")


def points(key: str, text: str) -> Told:
    """Of shares: the difference in points."""
    return Told(key, text, "+.1f", 100.0)


def headline(parts: Sequence[Told], found: Mapping[str, Any]) -> str:
    """Empty while the first part, which the claim stands for, is missing."""
    said = [part(found) for part in parts]
    return "; ".join(filter(None, said)) if said[0] else ""
