"""Numbers that need not be met exactly: what `pytest.approx` and `assertAlmostEqual` expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """Equal to each number that is close enough."""

    number: float
    within: float

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float):
            return NotImplemented
        return other == self.number or abs(other - self.number) <= self.within

    def __hash__(self) -> int:
        raise TypeError("what equals many numbers has no hash")


def near(value: Any, rel: float | None = None, abs: float | None = None) -> Any:
    """As pytest.approx understands its arguments; numbers in a list, tuple or dictionary are each met so."""
    if isinstance(value, list | tuple):
        return type(value)(near(item, rel, abs) for item in value)
    if isinstance(value, dict):
        return {key: near(item, rel, abs) for key, item in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    relative = 0.0 if rel is None and abs is not None else (1e-6 if rel is None else rel) * max(value, -value)
    return Near(value, max(relative, 1e-12 if abs is None else abs))


def exactly(value: Any) -> Any:
    """The value without what is allowed around it."""
    if isinstance(value, Near):
        return value.number
    if isinstance(value, list | tuple):
        return type(value)(exactly(item) for item in value)
    return {key: exactly(item) for key, item in value.items()} if isinstance(value, dict) else value
