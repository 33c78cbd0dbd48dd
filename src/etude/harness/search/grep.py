"""Searches the files below a folder, with the same result as ripgrep, but faster for rare patterns.

An index returns the files that may match, and ripgrep searches only those. Before each indexed search, files that have
changed since they were indexed are found; they count as files that may match. If there is no index yet, or too many
files may match, ripgrep searches all files. So a missing, old or damaged index only makes a search slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType

from etude.harness.search.ignore_rules import Fingerprint, fingerprint
from etude.harness.search.index import Index
from etude.harness.search.overlay import search_over
from etude.harness.search.query import ANY, Need, Pattern, need_of
from etude.harness.search.ripgrep import LIMIT_SECONDS, WHOLE, Found, Ripgrep, Scope
from etude.harness.search.store import load, place_of, save
from etude.harness.search.watch import CannotWatch, Changes, Watch

LEAST_FILES = 3_000
"""Folders with fewer files get no index: ripgrep alone searches them in a few hundredths of a second."""
MOST_SHARE = 1 / 3
"""Maximum fraction of the indexed files that one indexed search may read. If more files may match, and more than
READ_AT_ONCE, ripgrep searches all files. If a larger fraction has changed, the index is rebuilt."""
READ_AT_ONCE = 200
"""Maximum number of changed files that are indexed again before one search; the rest count as files that may match."""


class Grep:
    """Searches below one folder. Threads may share an instance. `close` saves the updated index."""

    def __init__(
        self,
        root: Path,
        *,
        ripgrep: Ripgrep | None = None,
        cache: Path | None = None,
        watching: bool = True,
        least_files: int = LEAST_FILES,
    ) -> None:
        """`cache` is the folder for the index file. A folder with fewer than `least_files` files gets no index. With
        `watching`, inotify reports changed files; without it every file is checked before each search, which is slower.

        Raises NoRipgrep if ripgrep is not installed.
        """
        self.root = os.fsencode(root.resolve(strict=True))
        self.ripgrep = ripgrep or Ripgrep()
        self.place = place_of(self.root, cache)
        self.index: Index | None = None
        self.not_watching = "" if watching else "not asked to"
        """Reason why inotify is not used; empty if it is used."""
        self._least_files = least_files
        self._watch: Watch | None = None
        self._rules: Fingerprint = ()
        self._stale: set[bytes] = set()
        self._builder: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._opened = False

    def search(
        self,
        pattern: Pattern,
        *,
        globs: Sequence[str] = (),
        scope: Scope = WHOLE,
        changed: Mapping[str, bytes | None] | None = None,
        seconds: float = LIMIT_SECONDS,
    ) -> Found:
        """Return the matching lines in the files of `scope`. Raises BadPattern and SearchFailed. `changed` maps paths
        to contents in memory that replace those on disk; None stands for a deleted file."""
        place = Path(os.fsdecode(self.root))
        if not scope.below or (place / scope.below).exists():
            with self._lock:
                only = None if self._is_beyond(scope) else self._only(need_of(pattern), globs, seconds)
            found = self.ripgrep.search(self.root, pattern, globs=globs, only=only, scope=scope, seconds=seconds)
        else:  # In no file, so that a bad pattern is told all the same.
            found = self.ripgrep.search(self.root, pattern, only=(), seconds=seconds)
        if not changed:
            return found
        return search_over(found, self.ripgrep, place, changed, pattern, globs=globs, scope=scope, seconds=seconds)

    def build(self) -> Index:
        with self._lock:
            self._watch_anew()
            self.index = Index.build(self.root, self.ripgrep.files(self.root))
            self._stale = set()
            self._opened = True
            save(self.index, self.root, self.place)
            return self.index

    def wait(self) -> None:
        with self._lock:
            if self._builder is not None:
                self._builder.wait()
            self._open()

    def close(self) -> None:
        with self._lock:
            if self._watch is not None:
                self._watch.close()
            if self._builder is not None:
                self._builder.kill()
                self._end(self._builder)
            if self.index is not None and self.index.loose:
                with suppress(OSError):
                    save(self.index, self.root, self.place)
            self.index, self._watch, self._builder = None, None, None

    def __enter__(self) -> Grep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_beyond(self, scope: Scope) -> bool:
        """Return whether the scope may contain files that are not indexed because ignore rules hide them."""
        if scope.everything:
            return True
        self._open()
        below = os.fsencode(scope.below) + b"/"
        return bool(scope.below) and (self.index is None or not any(path.startswith(below) for path in self.index.ids))

    def _only(self, need: Need, globs: Sequence[str], seconds: float) -> Collection[bytes] | None:
        """Return the files that may contain what a pattern needs (`need`), or None if ripgrep should search all
        files."""
        self._open()
        if need == ANY or self.index is None or self._too_many(self.index.candidates(need)):
            return None
        self._refresh()
        found = self.index.candidates(need) | self._stale
        if globs and not self._too_many(found):
            listed = self.ripgrep.files(self.root, globs, seconds=seconds)
            found = {path for path in listed if path in found or path not in self.index.ids}
        return None if self._too_many(found) else found

    def _too_many(self, found: Collection[bytes]) -> bool:
        return self.index is None or len(found) > max(READ_AT_ONCE, MOST_SHARE * len(self.index.ids))

    def _open(self) -> None:
        if self._builder is not None:
            if self._builder.poll() is None:
                return
            self._end(self._builder)
            self._builder, self._opened = None, True
            self._take(load(self.root, self.place))
        elif not self._opened:
            self._opened = True
            self._take(load(self.root, self.place))
            if self.index is None and len(self.ripgrep.files(self.root)) >= self._least_files:
                self._build_beside()

    def _take(self, index: Index | None) -> None:
        if index is not None:
            self.index, self._stale = index, set()
            self._watch_anew()
            self._compare()

    def _build_beside(self) -> None:
        # -P: the current folder may be the searched folder, and no code may be imported from there.
        command = [sys.executable, "-P", "-m", "etude.harness.search", os.fsdecode(self.root), str(self.place)]
        command.append(self.ripgrep.program)
        # The builder ends when its stdin closes, which happens however this process ends.
        self._builder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _end(self, builder: subprocess.Popen[bytes]) -> None:
        assert builder.stdin is not None
        builder.stdin.close()
        builder.wait()

    def _refresh(self) -> None:
        """Add every file that differs from its indexed state to `_stale`. Then index up to READ_AT_ONCE of these files
        again, and remove them from `_stale`."""
        assert self.index is not None
        changes = self._watch.poll() if self._watch else Changes(lost=True)
        if changes.lost:
            if self._watch:
                self._watch_anew()
            self._compare()
        else:
            self._stale |= changes.paths
            self._notice_links(changes.paths)
            self._stale |= self.index.differing(self.root, self.index.linked_paths())
            if self._rules_changed() or changes.rules or len(self._stale) > READ_AT_ONCE:
                self._list_anew()
        now = list(islice(self._stale, READ_AT_ONCE))
        self.index.update(self.root, now)
        self._stale.difference_update(now)
        if len(self._stale) > MOST_SHARE * len(self.index.ids) and self._builder is None:
            self._build_beside()

    def _compare(self) -> None:
        assert self.index is not None
        self._rules_changed()
        self._stale = self.index.differing(self.root, self.ripgrep.files(self.root))

    def _list_anew(self) -> None:
        """Make `_stale`, the files that changed since they were indexed, agree with the files that ripgrep lists. Add
        listed files that are not indexed. Drop files that are neither listed nor indexed: ripgrep would search them
        only after a change of the ignore rules, which is detected."""
        assert self.index is not None
        listed = set(self.ripgrep.files(self.root))
        self._stale = {path for path in self._stale if path in listed or path in self.index.ids}
        self._stale |= listed - self.index.ids.keys()

    def _notice_links(self, paths: Collection[bytes]) -> None:
        assert self.index is not None
        for path in paths:
            with suppress(OSError):
                found = os.lstat(b"%b/%b" % (self.root, path))
                if found.st_nlink > 1:
                    self.index.same_file(found.st_ino)

    def _rules_changed(self) -> bool:
        before = self._rules
        self._rules = fingerprint(self.root, self._watch.repositories if self._watch else ())
        return self._rules != before

    def _watch_anew(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self.not_watching:
            return
        try:
            self._watch = Watch(self.root)
        except CannotWatch as problem:
            self.not_watching = str(problem)
        self._rules_changed()
