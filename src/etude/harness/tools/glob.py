"""glob: find files by name.

`*` and `?` match within one path component, `**` matches across folders, `[...]` matches one of the listed characters.
A pattern without a slash is searched for in every folder.
"""

from __future__ import annotations

import re
from typing import Any

from etude.harness.toolbox import Output, Toolbox

_PIECES = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]|[^*?\[]+|\[")


async def glob(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    pattern = arguments["pattern"].strip().removeprefix("./")
    matches = name_pattern(pattern if "/" in pattern else f"**/{pattern}").fullmatch
    found = [path for path in await toolbox.workspace.files() if matches(path)]
    return Output(found or [toolbox.say("no_name")])


def braced(pattern: str) -> list[str]:
    """Expand `{this,that}` into several patterns; a pattern without braces gives itself."""
    begin, opened, rest = pattern.partition("{")
    inside, closed, end = rest.partition("}")
    if not (opened and closed):
        return [pattern]
    return [f"{begin}{each}{after}" for after in braced(end) for each in inside.split(",")]


def name_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a glob pattern. Any text is valid: what is no wildcard stands for itself."""
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
