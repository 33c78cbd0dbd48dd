"""Glob patterns for file names.

`*` and `?` match within one path component, `**` across folders, `[...]` matches one of the listed characters.
"""

from __future__ import annotations

import re

_PIECES = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|[^*?\[]+|\[")


def braced(pattern: str) -> list[str]:
    """Expand `{this,that}` in a glob pattern into several patterns."""
    begin, opened, rest = pattern.partition("{")
    inside, closed, end = rest.partition("}")
    if not (opened and closed):
        return [pattern]
    return [f"{begin}{each}{after}" for after in braced(end) for each in inside.split(",")]


def name_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a glob pattern to a regular expression for whole paths. Any text is valid."""
    parts: list[str] = []
    for piece in _PIECES.findall(pattern):
        if piece == "**/":
            parts.append("(?:[^/]+/)*")
        elif piece == "**":
            parts.append(".*")
        elif piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif piece.startswith("[") and len(piece) > 1:
            inside = piece[1:-1].removeprefix("!")
            letters = re.sub(r"([\\\^\[&~|])", r"\\\1", inside)
            parts.append(f"[^/{letters}]" if piece[1] == "!" else f"[{letters}]")
        else:
            parts.append(re.escape(piece))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:  # an invalid range, such as [z-a]
        return re.compile(re.escape(pattern))
