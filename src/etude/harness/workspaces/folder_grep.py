"""Grep in a workspace whose files are in a folder on disk.

Ripgrep searches the disk. For files that the workspace has changed, the matches on disk are replaced by those in the
changed contents. The result equals that of ripgrep in a folder with the workspace's files, except that an ignore file
changed in the workspace does not affect the search of files on disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path

from etude.harness.editing.diff import LEFT_OUT
from etude.harness.search import Found, Grep, NoRipgrep, Pattern, Ripgrep, Scope, SearchFailed
from etude.harness.search.grep import LEAST_FILES
from etude.harness.search.grep_query import Line, Query
from etude.harness.workspaces.folder_files import FolderFiles
from etude.sandbox.contract import RequestRefused


class FolderSearch:
    """Searches one folder. The first search opens the index; `close` ends its background processes."""

    def __init__(
        self,
        folder: Path,
        ripgrep: Ripgrep,
        *,
        moved: Callable[[], Mapping[str, bytes]] = dict,
        cache: Path | None = None,
        least_files: int = LEAST_FILES,
    ) -> None:
        """`moved` returns the files that changed on disk after the workspace read them, with the contents that the
        workspace read. The search uses these contents instead of those on disk."""
        self._folder = folder
        self._moved = moved
        self._ripgrep = ripgrep
        self._cache = cache
        self._least_files = least_files
        self._grep: Grep | None = None
        self._lock = threading.Lock()

    async def search(
        self, query: Query, changed: Mapping[str, bytes | None], shown: Callable[[str], bool], most: int
    ) -> list[Line]:
        if not query.regex and "\n" in query.text:
            return []  # ripgrep would search for each line separately
        over = {**self._moved(), **changed}
        try:
            found = await asyncio.to_thread(self._search, query, over, most)
        except (SearchFailed, OSError) as error:
            raise RequestRefused(f"the folder cannot be searched: {error}") from error
        is_shown = cache(shown)
        return list(islice((line for line in found.matches() if is_shown(line.path)), most))

    def _search(self, query: Query, over: Mapping[str, bytes | None], most: int) -> Found:
        pattern = Pattern(query.text, not query.regex, query.ignore_case, query.word)
        below = "" if query.path == "." else query.path
        scope = Scope(below, query.everything, tuple(sorted(LEFT_OUT)), most)
        globs = [query.glob] if query.glob else []
        return self._opened().search(pattern, globs=globs, scope=scope, changed=over)

    def _opened(self) -> Grep:
        with self._lock:
            if self._grep is None:
                self._grep = Grep(self._folder, ripgrep=self._ripgrep, cache=self._cache, least_files=self._least_files)
            return self._grep

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._grep is not None:
                self._grep.close()
                self._grep = None


def searcher_of(files: FolderFiles | Path) -> FolderSearch | None:
    """Return a searcher for a folder, or None if ripgrep is not installed. With FolderFiles, a file that changed on
    disk after it was read is searched in the version that was read."""
    try:
        if isinstance(files, Path):
            return FolderSearch(files, Ripgrep())
        return FolderSearch(files.folder, Ripgrep(), moved=files.moved)
    except NoRipgrep:
        return None
