"""Cuts a tool's output to a number of tokens, at line ends if possible, and marks the cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Count = Callable[[str], int]
"""Function that returns the number of tokens of a text."""


def cut_end(lines: Sequence[str], limit: int, count: Count, marker: Callable[[int], str], bare: str) -> str:
    """Keep as many leading lines as fit into `limit` tokens, followed by `marker(number of lines left out)`. If not
    even one line fits, keep the text's first characters, followed by `bare`, a marker without a number."""
    text = "\n".join(lines)
    if count(text) <= limit:
        return text
    return _most(len(lines) - 1, limit, count, lambda n: "\n".join([*lines[:n], marker(len(lines) - n)])) or _piece(
        text, limit, count, bare
    )


def cut_middle(lines: Sequence[str], limit: int, count: Count, marker: Callable[[int], str], bare: str) -> str:
    """Like `cut_end`, but keep the first and the last lines, with the marker between them. This suits command output,
    whose end matters most."""
    text = "\n".join(lines)
    if count(text) <= limit:
        return text

    def kept(n: int) -> str:
        head, tail = n // 2, n - n // 2
        return "\n".join([*lines[:head], marker(len(lines) - n), *lines[len(lines) - tail :]])

    return _most(len(lines) - 1, limit, count, kept) or _piece(text, limit, count, bare)


def _most(most: int, limit: int, count: Count, build: Callable[[int], str]) -> str:
    """Return `build(n)` for the largest n from 1 to `most` that fits into `limit` tokens, or "" if none fits. Bisection
    assumes that a larger n never gives fewer tokens. Where this is false, a larger n might fit too; the returned text
    always fits."""
    low, high, best = 1, most, ""
    while low <= high:
        middle = (low + high) // 2
        candidate = build(middle)
        if count(candidate) <= limit:
            best, low = candidate, middle + 1
        else:
            high = middle - 1
    return best


def _piece(text: str, limit: int, count: Count, bare: str) -> str:
    """Return as many first characters of the text as fit into `limit` tokens, followed by `bare`, a marker on a line of
    its own. The marker counts too; if it does not fit, return ""."""
    # More characters than this cannot fit. Without the bound, a huge text would be counted many times.
    text = text[: max(limit, 0) * 64]
    return _most(len(text), limit, count, lambda n: f"{text[:n]}\n{bare}") or (bare if count(bare) <= limit else "")
