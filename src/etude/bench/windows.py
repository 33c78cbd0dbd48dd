"""A rolling window over a long text, in tokens: which tokens a model reads, and which of them it is scored on.

Every token is scored once, after at least half a window of earlier tokens, or all there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Window(NamedTuple):
    start: int
    """First token that the model reads."""
    first: int
    """First token that is scored."""
    end: int
    """End of both."""


def rolling_windows(length: int, context: int) -> Iterator[Window]:
    """Yield windows of up to `context` tokens over `length` tokens. The token at 0 is read and never scored."""
    first = 1
    while first < length:
        end = min(length, context if first == 1 else first + context // 2)
        yield Window(max(0, end - context), first, end)
        first = end
