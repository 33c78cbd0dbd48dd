"""What the grep tool is asked for, and what it finds: lines that hold a pattern.

Two matchers know it. Over files in memory it is RE2 (here), whose time is linear in the text: no pattern that a model
writes can hang the harness. Over a folder on disk it is ripgrep (`folder_search.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_SPECIAL = re.compile(r"[!-/:-@\[-^`{-~]")


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    regex: bool = False
    path: str = "."
    """A file or folder of the workspace: only there."""
    glob: str = ""
    """Names of files as the glob tool reads them; with ! before it, all others."""
    ignore_case: bool = False
    word: bool = False
    """Only where no letter, digit or underscore stands beside the match."""
    everything: bool = False
    """Also what ignore files hide, and hidden files, where these are left out at all."""


@dataclass(frozen=True, slots=True)
class Line:
    path: str
    number: int
    text: str


class Searcher(Protocol):
    """Finds lines in a workspace whose files lie in a folder on disk."""

    async def search(
        self, query: Query, changed: Mapping[str, bytes | None], shown: Callable[[str], bool], most: int
    ) -> list[Line]:
        """The first so many lines, by path and number, of the files that are `shown`, as they are with those that
        `changed` (None: deleted). Raises BadPattern and RequestRefused."""
        ...

    async def close(self) -> None: ...


def matching(lines: Sequence[str], query: Query) -> list[bool]:
    """By line. ValueError for what is no regular expression."""
    if not (query.regex or query.ignore_case or query.word):
        return [query.text in line for line in lines]
    # Imported here: it takes a fifth of a second, and most runs never use it.
    import pyarrow as pa
    import pyarrow.compute as pc

    pattern = query.text if query.regex else _SPECIAL.sub(r"\\\g<0>", query.text)
    if query.word:
        pattern = rf"(?:^|\W)(?:{pattern})(?:\W|$)"
    hits: list[bool] = pc.match_substring_regex(
        pa.array(lines, pa.string()), pattern=pattern, ignore_case=query.ignore_case
    ).to_pylist()
    return hits
