"""Formats tool calls, diffs and counts as Textual content, without markup from untrusted text.

Invariant: all text that the agent, a file or a command wrote goes through `visible` or `exact` before it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from etude.cli.visible import exact, visible
from etude.harness import ToolCall

_SHOWN_FIRST = {"bash": "command", "shell": "command", "job_input": "text", "finish": "message", "ask": "question"}
FIRST_LINES, LAST_LINES = 2, 4


def headline(call: ToolCall) -> str:
    if call.arguments is None:
        return visible(" ".join(call.raw.split()))
    arguments = dict(call.arguments)
    if call.name == "patch":
        return ", ".join(visible(path) for path in _patched(str(arguments.get("patch", ""))))
    if call.name == "todo":
        return ""
    shown = []
    for key in (_SHOWN_FIRST.get(call.name, ""), "path", "pattern", "folder", "url", "query"):
        if key in arguments:
            shown.append(visible(" ".join(str(arguments.pop(key)).split())))
    shown += [f"{key} {value}" for key, value in arguments.items() if isinstance(value, bool | int | float)]
    short = [value for value in arguments.values() if isinstance(value, str) and call.name == "move"]
    return "  ".join([*shown, *(f"→ {visible(text)}" for text in short)])


def _patched(patch: str) -> Iterable[str]:
    for line in patch.splitlines():
        kind, _, path = line.partition(" File: ")
        if kind in ("*** Update", "*** Add", "*** Delete"):
            yield path.strip()


def folded(text: str) -> str:
    """Return the first and last lines of an output; all lines if it is short."""
    lines = visible(text).split("\n")
    if len(lines) <= FIRST_LINES + LAST_LINES + 1:
        return "\n".join(lines)
    hidden = len(lines) - FIRST_LINES - LAST_LINES
    return "\n".join([*lines[:FIRST_LINES], f"… {hidden} more lines", *lines[-LAST_LINES:]])


def difference(diff: str, *, strict: bool = False) -> Content:
    """Return a unified diff in colours, each file's header reduced to its name. `strict`, for diffs that the user must
    approve, escapes all unprintable characters (`exact`)."""
    parts: list[tuple[str, str]] = []
    lines = (exact if strict else visible)(diff).rstrip("\n").split("\n")
    inside = False
    for place, line in enumerate(lines):
        if line.startswith("--- ") and lines[place + 1 : place + 2] and lines[place + 1].startswith("+++ "):
            inside = False
            old, new = line[4:].removeprefix("a/"), lines[place + 1][4:].removeprefix("b/")
            name = f"new file {new}" if old == "/dev/null" else f"deleted {old}" if new == "/dev/null" else new
            parts.append((f"{name}\n", "bold"))
        elif line.startswith("+++ ") and not inside:
            continue
        elif line.startswith("@@"):
            inside = True
            parts.append((f"{line}\n", "$secondary"))
        elif line.startswith("+"):
            parts.append((f"{line}\n", "$success"))
        elif line.startswith("-"):
            parts.append((f"{line}\n", "$error"))
        else:
            parts.append((f"{line}\n", ""))
    return Content.assemble(*parts).rstrip()


def counted(diff: str) -> str:
    """Return the number of lines that a diff adds and removes, such as "+3 -1"."""
    lines = diff.splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
    gone = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
    return f"+{added} -{gone}"


def amount(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.3g}k"


def period(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 60 else f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
