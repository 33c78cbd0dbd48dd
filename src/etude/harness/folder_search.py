"""Lines in a folder on disk as a workspace sees it: ripgrep finds them, what the workspace has changed laid over.

What is found is what ripgrep would find if the workspace's files lay in the folder, but for an ignore file that the
workspace has changed: it hides nothing on disk before it is there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Container, Mapping
from itertools import islice
from pathlib import Path

from etude.harness.diff import LEFT_OUT
from etude.harness.folder import FolderFiles
from etude.harness.lines import Line, Query
from etude.harness.search import Found, Grep, NoRipgrep, Pattern, Ripgrep, Scope, SearchFailed
from etude.harness.search.grep import LEAST_FILES
from etude.sandbox.contract import RequestRefused


class FolderSearch:
    """Opened by the first search; `close` ends what runs behind it."""

    def __init__(
        self, files: FolderFiles, ripgrep: Ripgrep, *, cache: Path | None = None, least_files: int = LEAST_FILES
    ) -> None:
        self._files = files
        self._ripgrep = ripgrep
        self._cache = cache
        self._least_files = least_files
        self._grep: Grep | None = None
        self._lock = threading.Lock()

    async def search(
        self, query: Query, changed: Mapping[str, bytes | None], shown: Container[str], most: int
    ) -> list[Line]:
        if not query.regex and "\n" in query.text:
            return []  # to ripgrep each of the lines would be a pattern of its own
        over = {**self._files.moved(), **changed}
        try:
            found = await asyncio.to_thread(self._search, query, over, most)
        except (SearchFailed, OSError) as error:
            raise RequestRefused(f"the folder cannot be searched: {error}") from error
        matches = (match for match in found.matches() if match.path in shown)
        return [Line(each.path, each.line, each.text.decode("utf-8", "replace")) for each in islice(matches, most)]

    def _search(self, query: Query, over: Mapping[str, bytes | None], most: int) -> Found:
        pattern = Pattern(query.text, not query.regex, query.ignore_case, query.word)
        below = "" if query.path == "." else query.path
        scope = Scope(below, query.everything, tuple(sorted(LEFT_OUT)), most)
        globs = [query.glob] if query.glob else []
        return self._opened().search(pattern, globs=globs, scope=scope, changed=over)

    def _opened(self) -> Grep:
        with self._lock:
            if self._grep is None:
                self._grep = Grep(
                    self._files.folder, ripgrep=self._ripgrep, cache=self._cache, least_files=self._least_files
                )
            return self._grep

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._grep is not None:
                self._grep.close()
                self._grep = None


def searcher_of(files: FolderFiles) -> FolderSearch | None:
    """None where ripgrep is not installed."""
    try:
        return FolderSearch(files, Ripgrep())
    except NoRipgrep:
        return None
