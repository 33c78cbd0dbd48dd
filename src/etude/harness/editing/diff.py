"""Unified diffs between two states of a workspace, in a form that `patch -p1` and `git apply` read.

Files that are not UTF-8 text, version control folders and tools' caches are left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})


def is_source(path: str) -> bool:
    return not LEFT_OUT.intersection(path.split("/"))


def as_text(data: bytes) -> str | None:
    """Return the text of a file; None if it is not a text file (UTF-8 without null bytes)."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def equal_ends(one: Sequence[str], other: Sequence[str]) -> tuple[int, int]:
    """Return how many lines are equal at the start of both texts, and how many more at their end. Only the other lines
    need difflib, which takes quadratic time."""
    shorter = min(len(one), len(other))
    head = next((n for n in range(shorter) if one[n] != other[n]), shorter)
    return head, next((n for n in range(shorter - head) if one[-1 - n] != other[-1 - n]), shorter - head)


def unified_diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    return "".join(_changes(before, after))


def _changes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new or not is_source(path):
            continue
        old_text, new_text = as_text(old or b""), as_text(new or b"")
        if old_text is None or new_text is None:
            continue
        if not old_text and not new_text:
            # An empty file was added or deleted: a header shows it, as there are no lines.
            yield f"diff --git a/{path} b/{path}\n"
            yield "new file mode 100644\n" if old is None else "deleted file mode 100644\n"
            continue
        source = "/dev/null" if old is None else f"a/{path}"
        target = "/dev/null" if new is None else f"b/{path}"
        for line in difflib.unified_diff(_lines(old_text), _lines(new_text), source, target):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def binary_changes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return a line in git's format for each changed file that `unified_diff` leaves out because it is not text."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new and is_source(path) and None in (as_text(old or b""), as_text(new or b"")):
            source = "/dev/null" if old is None else f"a/{path}"
            target = "/dev/null" if new is None else f"b/{path}"
            lines.append(f"Binary files {source} and {target} differ\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Split a text into lines that keep their line ends. Only \\n ends a line, as for `patch`."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
