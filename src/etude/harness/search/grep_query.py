"""The grep tool's query and the lines it finds.

There are two matchers. For files in memory it is RE2 (here), whose time is linear in the text, so no pattern that a
model writes can hang the harness. For a folder on disk it is ripgrep (`workspaces/folder_grep.py`).
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
    """Search only this file or folder of the workspace."""
    glob: str = ""
    """Search only files with these names, a pattern as for the glob tool; with ! in front, all others."""
    ignore_case: bool = False
    word: bool = False
    """Match whole words only: no letter, digit or underscore next to the match."""
    everything: bool = False
    """Also search hidden files and what ignore files hide, in workspaces that leave these out."""


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
        """Return the first `most` matching lines, by path and number, of the files for which `shown` is true. `changed`
        replaces files on disk (None: deleted). Raises BadPattern and RequestRefused."""
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
