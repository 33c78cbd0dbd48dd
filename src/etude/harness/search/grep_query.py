"""The query of the grep tool, and the lines that it finds.

There are two search engines. Files in memory are searched by RE2 (in this file), whose time is linear in the length of
the text, so that no pattern from a model can hang the harness. A folder on disk is searched by ripgrep
(`workspaces/folder_grep.py`).
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
    """Text to find; a regular expression if `regex` is set."""
    regex: bool = False
    path: str = "."
    glob: str = ""
    """Glob of the files to search, in the syntax of the glob tool; with a leading "!", of the files to leave out."""
    ignore_case: bool = False
    word: bool = False
    everything: bool = False
    """Whether ripgrep searches hidden and ignored files too. RE2 always does."""


@dataclass(frozen=True, slots=True)
class Line:
    path: str
    number: int
    text: str


class Searcher(Protocol):
    """Finds lines in a workspace whose files are in a folder on disk."""

    async def search(
        self, query: Query, changed: Mapping[str, bytes | None], shown: Callable[[str], bool], most: int
    ) -> list[Line]:
        """Return the first `most` matching lines, sorted by path and number. Raises BadPattern and RequestRefused.

        `changed` maps paths to contents that replace those on disk (None: deleted). Only files for which `shown`
        returns true are searched.
        """
        ...

    async def close(self) -> None: ...


def matching(lines: Sequence[str], query: Query) -> list[bool]:
    """Return for each line whether it matches. Raises ValueError for an invalid regular expression."""
    if not (query.regex or query.ignore_case or query.word):
        return [query.text in line for line in lines]
    # Imported here because the import takes 0.2 s and most runs never need it.
    import pyarrow as pa
    import pyarrow.compute as pc

    pattern = query.text if query.regex else _SPECIAL.sub(r"\\\g<0>", query.text)
    if query.word:
        pattern = rf"(?:^|\W)(?:{pattern})(?:\W|$)"
    hits: list[bool] = pc.match_substring_regex(
        pa.array(lines, pa.string()), pattern=pattern, ignore_case=query.ignore_case
    ).to_pylist()
    return hits
