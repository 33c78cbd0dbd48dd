"""Parses JSON that the code under test may have written.

Parsed JSON takes up to 25 times the memory of its text, and nested values exhaust the stack of whoever compares or
prints them later. So the size is checked before parsing, and callers check that values are flat (`flat_table`,
`texts_by_name`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MOST_ITEMS = 400_000
"""Most values that one text may hold, counted by its commas and brackets, those in strings included."""


def parse_untrusted(data: bytes | str, max_bytes: int) -> Any:
    """Parse a JSON text. Raises ValueError if it is too large, holds too many values, is nested too deeply, or is not
    JSON."""
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    marks: tuple[Any, ...] = (b",", b"[", b"{") if isinstance(data, bytes) else (",", "[", "{")
    if sum(map(data.count, marks)) > MOST_ITEMS:
        raise ValueError(f"more than {MOST_ITEMS} values")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def flat_table(found: object) -> dict[str, str | int | float | None]:
    """Return the value if it is an object without nested values. Raises ValueError if it is not."""
    if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
        raise ValueError("expected an object without nested values")
    return found


def texts_by_name(found: object) -> Mapping[str, str]:
    """Return the value if it is an object whose values are strings. Raises ValueError if it is not."""
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("expected an object of strings")
    return found
