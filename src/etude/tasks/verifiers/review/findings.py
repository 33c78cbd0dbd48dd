"""Parses the findings that an agent writes, as lines of REVIEW.md or as a list in review.json.

REVIEW.md    lines `path:line: text`; the last part in backticks is an example that demonstrates the defect
review.json  [{"path": ..., "line": ..., "text": ..., "example": ...}]
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

TEXT, LIST = "REVIEW.md", "review.json"
_LINE = re.compile(r"\s*(?:[-*+]\s+|\d+[.)]\s+)?[`*]*(?P<path>[\w./-]+)[`*]*:(?P<line>\d+)[`*]*:\s*(?P<text>.*)")
_TICKS = re.compile(r"`+")
_MOST_FINDINGS = 200
_MOST_BYTES = 1 << 17
"""Largest review, in bytes. Reviews are limited because they are parsed outside of any box."""


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    text: str
    example: str = ""
    """A Python expression whose value the defect changes; may be empty."""


class ReviewError(Exception):
    """Raised if a review is missing, too large or cannot be parsed. The message says what was expected."""


def read_review(listed: bytes | None, text: bytes | None) -> list[Finding]:
    """Parse review.json (`listed`) or else REVIEW.md (`text`), where other lines are ignored. Raises ReviewError."""
    if len(listed or text or b"") > _MOST_BYTES:
        raise ReviewError(f"expected at most {_MOST_BYTES} bytes")
    if listed is not None:
        found = _read_list(listed)
    elif text is not None:
        matches = map(_LINE.fullmatch, text.decode("utf-8", "replace").splitlines())
        found = [Finding(_path(m["path"]), int(m["line"][:9]), *_split_example(m["text"])) for m in matches if m]
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


def _split_example(text: str) -> tuple[str, str]:
    """Split a finding's text into its description and its example: what the last pair of equally long runs of backticks
    encloses. Runs are paired from the left."""
    ticks = [match.span() for match in _TICKS.finditer(text)]
    last: dict[int, int] = {}
    """Index of the last run of backticks of each length. A run can open a quotation only if a later run of its length
    closes it."""
    for place, (start, end) in enumerate(ticks):
        last[end - start] = place
    found, place = None, 0
    while place < len(ticks):
        start, end = ticks[place]
        if last[end - start] > place:
            first = (start, end)
            place += 1
            while ticks[place][1] - ticks[place][0] != end - start:
                place += 1
            found = first, ticks[place]
        place += 1
    if found is None:
        return text, ""
    (start, opened), (closed, end) = found
    return text[:start] + text[end:], text[opened:closed].strip()
