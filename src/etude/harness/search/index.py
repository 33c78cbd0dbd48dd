"""The index of a folder: a signature of each file, which tells whether the file may match a pattern.

A need (`query.py`) is the condition that a file must meet to match a pattern. `candidates(need)` returns every indexed
file that meets the need, and few others, unless a file has changed since it was indexed. `differing` finds the files
that may have changed, by size, times and inode. Files for which a signature could be wrong are always candidates. The
index says nothing about files that are not indexed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from etude.harness.search.file_state import UNSURE, FileState, file_state_of, settled_state
from etude.harness.search.grams import Bits, signature
from etude.harness.search.query import Need
from etude.harness.search.shards import Shard, holds, most_files, shards_of

MOST_BYTES = 32_000_000
"""Maximum size in bytes of a file with a signature. A larger file has none and may match every pattern."""

_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
"""Byte order marks. Ripgrep decodes a text that begins with one, so it does not search the bytes on disk."""
_FOLDING = ("\u017f".encode(), "\u212a".encode())
"""The only non-ASCII characters that match an ASCII letter (s, k) in a case-insensitive search."""

_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO}
"""Errors of opening a path that was deleted or is a folder, link or pipe, none of which ripgrep searches."""


@dataclass(slots=True)
class Index:
    """Paths, states and signatures of a folder's files. A file's id is its index in `paths` and `states`."""

    paths: list[bytes] = field(default_factory=list)
    """Path of each file id. A path that is indexed again gets a new id; only its last id is valid."""
    states: list[FileState] = field(default_factory=list)
    always: set[int] = field(default_factory=set)
    """Ids of files without a signature, which may match any pattern."""
    linked: set[int] = field(default_factory=set)
    """Ids of files with several hard links, which may be changed under a name outside the folder."""
    shards: list[Shard] = field(default_factory=list)
    """Signatures of most files, packed into one bit matrix per group of files. Files that were indexed after the
    packing are in `loose`."""
    loose: dict[int, Bits] = field(default_factory=dict)
    """Signatures, by file id, of files that were indexed after `shards` was built and are not packed into it yet."""
    ids: dict[bytes, int] = field(default_factory=dict)
    """The valid id of each indexed path."""

    @classmethod
    def build(cls, root: bytes, paths: Iterable[bytes]) -> Index:
        index = cls()
        index.shards = list(shards_of(index._read_all(root, paths)))
        return index

    def candidates(self, need: Need) -> set[bytes]:
        found = [self.paths[file] for file in self.always if self._counts(file)]
        for shard in self.shards:
            found += [self.paths[file] for file in shard.may_hold(need).tolist() if self._counts(file)]
        found += [self.paths[file] for file, bits in self.loose.items() if self._counts(file) and holds(bits, need)]
        return set(found)

    def update(self, root: bytes, paths: Iterable[bytes]) -> None:
        """Index these files, replacing their earlier entries. Paths that no longer exist leave the index."""
        self.loose.update(self._read_all(root, paths))

    def differing(self, root: bytes, paths: Iterable[bytes]) -> set[bytes]:
        """Return those of the given paths that are not indexed or may have changed since they were indexed."""
        found = set()
        for path in paths:
            file = self.ids.get(path)
            if (
                file is None
                or self.states[file] == UNSURE
                or file_state_of(b"%b/%b" % (root, path)) != self.states[file]
            ):
                found.add(path)
        return found

    def same_file(self, inode: int) -> None:
        """Add all indexed files with this inode, which was found to have several hard links, to `linked`."""
        self.linked |= {file for file in self.ids.values() if self.states[file][3] == inode}

    def linked_paths(self) -> list[bytes]:
        return [self.paths[file] for file in self.linked if self._counts(file)]

    def compact(self) -> None:
        """Pack all signatures into shards and renumber the files. Entries of files that left the index, or were indexed
        again, are dropped."""
        if not self.loose and len(self.ids) == len(self.paths):
            return
        dropped = np.ones(len(self.paths), np.bool_)
        dropped[list(self.ids.values())] = False
        full = [shard for shard in self.shards if len(shard.files) >= most_files(len(shard.rows))]
        kept = [shard for shard in full if not dropped[shard.files].any()]
        ids = {id(shard) for shard in kept}
        again = [shard for shard in self.shards if id(shard) not in ids]
        self.shards = kept + list(shards_of(self._kept(again, dropped)))
        self.loose = {}
        self._number_anew(dropped)

    def _kept(self, shards: list[Shard], dropped: NDArray[np.bool_]) -> Iterator[tuple[int, Bits]]:
        for shard in shards:
            yield from shard.without(dropped)
        yield from ((file, bits) for file, bits in self.loose.items() if not dropped[file])

    def _number_anew(self, dropped: NDArray[np.bool_]) -> None:
        numbers = np.cumsum(~dropped, dtype=np.int32) - 1
        kept = np.flatnonzero(~dropped).tolist()
        self.shards = [Shard(shard.rows, numbers[shard.files].astype(np.int32)) for shard in self.shards]
        self.paths = [self.paths[file] for file in kept]
        self.states = [self.states[file] for file in kept]
        self.always = {int(numbers[file]) for file in self.always if not dropped[file]}
        self.linked = {int(numbers[file]) for file in self.linked if not dropped[file]}
        self.ids = {path: file for file, path in enumerate(self.paths)}

    def _counts(self, file: int) -> bool:
        return self.ids.get(self.paths[file]) == file

    def _read_all(self, root: bytes, paths: Iterable[bytes]) -> Iterator[tuple[int, Bits]]:
        for path in paths:
            old = self.ids.pop(path, None)
            if old is not None:
                self.loose.pop(old, None)
            try:
                text, state, links = _read(b"%b/%b" % (root, path))
            except OSError as error:
                if error.errno in _NO_FILE:
                    continue
                # A file that cannot be read is a candidate, so that ripgrep reports the error.
                text, state, links = None, UNSURE, 1
            file = len(self.paths)
            self.paths.append(path)
            self.states.append(state)
            self.ids[path] = file
            if links > 1:
                self.same_file(state[3])
                self.linked.add(file)
            if text is None or not _as_it_is_searched(text):
                self.always.add(file)
            else:
                yield file, signature(text)


def _as_it_is_searched(text: bytes) -> bool:
    """Return whether a signature of these bytes misses no match: ripgrep searches them without decoding, and they
    contain no non-ASCII character that equals an ASCII letter if case is ignored."""
    if text.startswith(_MARKS):
        return False
    return text.isascii() or not any(each in text for each in _FOLDING)


def _read(path: bytes) -> tuple[bytes | None, FileState, int]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
        begun = time.time_ns()
        text = _contents(handle, before.st_size) if before.st_size <= MOST_BYTES else None
        after = os.fstat(handle)
    finally:
        os.close(handle)
    return text, settled_state(before, begun, after), after.st_nlink


def _contents(handle: int, size: int) -> bytes:
    parts = []
    while part := os.read(handle, size + 1):
        parts.append(part)
        if len(part) <= size and len(parts) == 1:
            break
    return b"".join(parts)
