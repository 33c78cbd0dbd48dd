"""Formats estimates for a claim: first as keys of its JSON line, then as text. Each figure has its 95 % interval.

Invariant: a figure without rows is None, like its interval, and is left out of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from etude.rollout import Estimate, across_seeds


def stated(name: str, estimate: Estimate | None) -> dict[str, Any]:
    """Return the keys `name` (the mean) and `name`_ci (its interval)."""
    return {name: number(estimate), f"{name}_ci": interval(estimate)}


def of_seeds(values: Sequence[float]) -> Estimate | None:
    """Estimate from one figure per seed. With one seed there is a mean but no interval."""
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
    """Round to four decimal places, or small values to two significant digits."""
    return round(value, 4) if abs(value) >= 1e-3 else float(f"{value:.2g}")


def in_tens(curve: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Smooth a noisy curve of [step, value]: the mean of every ten points, at the last one's step."""
    tens = [curve[first : first + 10] for first in range(0, len(curve), 10)]
    return [(ten[-1][0], fmean(value for _, value in ten)) for ten in tens]


@dataclass(frozen=True, slots=True)
class Told:
    """Text of a figure or a list of them, with its interval in square brackets and the seeds' values in round ones."""

    key: str
    text: str
    """Contains {} where the figure is inserted."""
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
    """Text of a figure before (`key`) and `after`, without intervals; the difference is a separate figure."""

    after: str = ""

    def __call__(self, found: Mapping[str, Any]) -> str:
        if found[self.key] is None:
            return ""
        return self.text.format(f"{self._shown(found[self.key])} \u2192 {self._shown(found[self.after])}")


def points(key: str, text: str) -> Told:
    """Text of a difference of shares, in percentage points."""
    return Told(key, text, "+.1f", 100.0)


def headline(parts: Sequence[Told], found: Mapping[str, Any]) -> str:
    """Join the parts' texts. Empty while the first part, the claim's main figure, is missing."""
    said = [part(found) for part in parts]
    return "; ".join(filter(None, said)) if said[0] else ""
