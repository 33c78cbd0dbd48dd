"""Findings as an agent writes them down: lines of REVIEW.md, or a list in review.json.

REVIEW.md    lines `path:line: text`; what stands in backticks last is the example
review.json  [{"path": ..., "line": ..., "text": ..., "example": ...}]
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

TEXT, LIST = "REVIEW.md", "review.json"
_LINE = re.compile(r"\s*(?:[-*+]\s+|\d+[.)]\s+)?[`*]*(?P<path>[\w./-]+)[`*]*:(?P<line>\d+)[`*]*:\s*(?P<text>.*)")
_QUOTED = re.compile(r"(`+)(.+?)\1(?!`)")
_MOST_FINDINGS = 200


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    text: str
    example: str = ""
    """An expression whose value the defect makes another."""


class ReviewError(Exception):
    """A review is not one that can be read; says what was expected."""


def read_review(listed: bytes | None, text: bytes | None) -> list[Finding]:
    """ReviewError if there is none. Lines of REVIEW.md that name no place are prose."""
    if listed is not None:
        found = _read_list(listed)
    elif text is not None:
        matches = map(_LINE.fullmatch, text.decode("utf-8", "replace").splitlines())
        found = [Finding(_path(m["path"]), int(m["line"][:9]), *_apart(m["text"])) for m in matches if m]
    else:
        raise ReviewError(f"there is no {TEXT} and no {LIST}")
    if len(found) > _MOST_FINDINGS:
        raise ReviewError(f"expected at most {_MOST_FINDINGS} findings, found {len(found)}")
    return found


def _read_list(data: bytes) -> list[Finding]:
    try:
        rows = json.loads(data)
        return [
            Finding(_path(str(row["path"])), int(row["line"]), str(row["text"]), str(row.get("example", "")))
            for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ReviewError(f"{LIST}: expected a list of objects with path, line and text") from error


def _path(text: str) -> str:
    return text.removeprefix("./")


def _apart(text: str) -> tuple[str, str]:
    """What is said, and the example."""
    quoted = list(_QUOTED.finditer(text))
    if not quoted:
        return text, ""
    last = quoted[-1]
    return text[: last.start()] + text[last.end() :], last[2].strip()
