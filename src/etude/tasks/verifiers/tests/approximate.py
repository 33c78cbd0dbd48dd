"""Approximate numbers: the expected values of `pytest.approx` and `assertAlmostEqual`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """A number that compares equal to every number within a tolerance."""

    number: float
    within: float

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float):
            return NotImplemented
        return other == self.number or abs(other - self.number) <= self.within

    def __hash__(self) -> int:
        raise TypeError("an approximate number cannot be hashed")


def near(value: Any, rel: float | None = None, abs: float | None = None) -> Any:
    """As `pytest.approx(value, rel, abs)`: each number becomes a `Near`, also in lists, tuples and dictionaries."""
    if isinstance(value, list | tuple):
        return type(value)(near(item, rel, abs) for item in value)
    if isinstance(value, dict):
        return {key: near(item, rel, abs) for key, item in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    relative = 0.0 if rel is None and abs is not None else (1e-6 if rel is None else rel) * max(value, -value)
    return Near(value, max(relative, 1e-12 if abs is None else abs))


def exactly(value: Any) -> Any:
    """Return the value with each `Near` (a number with a tolerance) in it replaced by the plain number."""
    if isinstance(value, Near):
        return value.number
    if isinstance(value, list | tuple):
        return type(value)(exactly(item) for item in value)
    return {key: exactly(item) for key, item in value.items()} if isinstance(value, dict) else value
