"""Cuts a tool's output to a number of tokens, at line ends where possible, with a marker where something was cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Count = Callable[[str], int]


def fits(text: str, limit: int, count: Count) -> bool:
    return count(text) <= limit


def cut_end(lines: Sequence[str], limit: int, count: Count, marker: Callable[[int], str], bare: str) -> str:
    """Keep as many leading lines as fit, then `marker(lines left out)`. For text that is read from the top."""
    text = "\n".join(lines)
    if fits(text, limit, count):
        return text
    return _most(len(lines) - 1, limit, count, lambda n: "\n".join([*lines[:n], marker(len(lines) - n)])) or _piece(
        text, limit, count, bare
    )


def cut_middle(lines: Sequence[str], limit: int, count: Count, marker: Callable[[int], str], bare: str) -> str:
    """Keep the first and last lines, with `marker` between. For command output, whose end matters most."""
    text = "\n".join(lines)
    if fits(text, limit, count):
        return text

    def kept(n: int) -> str:
        head, tail = n // 2, n - n // 2
        return "\n".join([*lines[:head], marker(len(lines) - n), *lines[len(lines) - tail :]])

    return _most(len(lines) - 1, limit, count, kept) or _piece(text, limit, count, bare)


def _most(most: int, limit: int, count: Count, build: Callable[[int], str]) -> str:
    """Return the longest text of 1 to `most` lines that fits, or an empty string. Bisection works because token counts
    hardly shrink when lines are added; the result is counted, so it fits in any case."""
    low, high, best = 1, most, ""
    while low <= high:
        middle = (low + high) // 2
        candidate = build(middle)
        if fits(candidate, limit, count):
            best, low = candidate, middle + 1
        else:
            high = middle - 1
    return best


def _piece(text: str, limit: int, count: Count, bare: str) -> str:
    """Keep the beginning of the text by characters, for when not even one line fits."""
    # More characters than this cannot fit; without this bound a huge text would be counted again and again.
    text = text[: max(limit, 0) * 64]
    return _most(len(text), limit, count, lambda n: f"{text[:n]}\n{bare}") or (bare if count(bare) <= limit else "")
