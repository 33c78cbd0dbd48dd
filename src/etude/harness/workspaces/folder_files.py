"""A user's folder as a mapping from path to contents, where files are read when they are first needed.

The folder is listed once. A file that was read is cached, so that the agent keeps seeing the same contents even if the
user changes the file. The original contents of files that the agent changes are never dropped from memory; they are
needed for diffs and to detect changes by the user.
"""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from etude.harness.editing.diff import LEFT_OUT
from etude.harness.search.file_state import UNSURE, FileState, file_state_of, settled_state
from etude.sandbox.contract import RequestRefused

MAX_FILE_BYTES = 1_000_000
MAX_FOLDER_FILES = 500_000
"""Maximum number of files of a folder; path and size of each are in memory."""
MAX_HELD_BYTES = 200_000_000
"""Maximum number of bytes of unchanged files to cache. The least recently used file is dropped first."""

SMALLER = "choose a smaller folder"


class FolderTooLarge(Exception):
    """A folder has more files or bytes than the requested operation can handle."""


class FolderFiles(Mapping[str, bytes]):
    """The regular files below a folder. Version control, caches, symlinks, large files, and names that are not valid
    text are left out. If reading a file shows that it was deleted, it leaves the mapping."""

    def __init__(self, folder: Path, *, max_files: int = MAX_FOLDER_FILES, max_held: int = MAX_HELD_BYTES) -> None:
        """List the folder. Raises FolderTooLarge if it has more than `max_files` files."""
        self.folder = folder
        self.whole = False
        self._sizes = dict(_walk(folder, max_files))
        self._max_held = max_held
        self._held: OrderedDict[str, tuple[FileState, bytes]] = OrderedDict()
        self._held_bytes = 0
        self._kept: dict[str, tuple[FileState, bytes]] = {}

    def __getitem__(self, path: str) -> bytes:
        if path not in self._sizes:
            raise KeyError(path)
        known = self._kept.get(path) or self._held.get(path)
        if known is None:
            known = self._read(path)
            self._hold(path, known)
        elif path in self._held:
            self._held.move_to_end(path)
        return known[1]

    def __contains__(self, path: object) -> bool:
        return path in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._sizes))

    def __len__(self) -> int:
        return len(self._sizes)

    def keep(self, path: str) -> None:
        """Keep a file's contents, as cached or else as on disk, in memory permanently, if the file exists."""
        if path in self._sizes and path not in self._kept:
            with suppress(KeyError):
                self._kept[path] = self._held.get(path) or self._read(path)

    def set_original(self, path: str, data: bytes) -> None:
        """Keep `data` as the original contents of a file, whatever is on disk, unless its original contents are already
        kept."""
        self._sizes.setdefault(path, len(data))
        self._kept.setdefault(path, (UNSURE, data))

    def size(self) -> int:
        return sum(self._sizes.values())

    def read_uncached(self, path: str) -> tuple[FileState, bytes]:
        """Read a file's state and contents from disk. Raises KeyError if the file no longer exists."""
        return self._read(path)

    def keep_all(self) -> None:
        for path in self:
            self.keep(path)
        self.whole = True

    def moved(self) -> dict[str, bytes]:
        """Return the files that were changed or deleted on disk after they were read, with their contents in memory."""
        root = os.fspath(self.folder)
        known = {**self._held, **self._kept}
        found = {path: data for path, (state, data) in known.items() if state != file_state_of(f"{root}/{path}")}
        return {path: data for path, data in found.items() if not self._is_still(path, data)}

    def rebase(self, path: str, data: bytes | None) -> None:
        """Replace the original contents of a file by `data`, which have been written to disk (None: deleted)."""
        self._forget(path)
        self._kept.pop(path, None)
        if data is None:
            self._sizes.pop(path, None)
        else:
            self._sizes[path] = len(data)
            self._kept[path] = (UNSURE, data)

    def _is_still(self, path: str, data: bytes) -> bool:
        """Return whether a file whose state (size, times, inode) has changed still has the contents `data`. If so,
        remember its new state."""
        try:
            state, now = _contents(self.folder / path)
        except OSError:
            return False
        if now != data:
            return False
        for known in (self._held, self._kept):
            if path in known:
                known[path] = (state, data)
        return True

    def _read(self, path: str) -> tuple[FileState, bytes]:
        try:
            return _contents(self.folder / path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            # Other programs of the user may delete files at any time.
            self._sizes.pop(path, None)
            raise KeyError(path) from None
        except OSError as error:
            raise RequestRefused(f"{path} cannot be read: {error.strerror}") from error

    def _hold(self, path: str, known: tuple[FileState, bytes]) -> None:
        self._held[path] = known
        self._held_bytes += len(known[1])
        while self._held_bytes > self._max_held and len(self._held) > 1:
            self._forget(next(iter(self._held)))

    def _forget(self, path: str) -> None:
        known = self._held.pop(path, None)
        if known is not None:
            self._held_bytes -= len(known[1])


class CurrentFiles:
    """Reads the current contents of a folder's files, the same files that a FolderFiles of the folder lists.

    Contents are cached. A file is read again if its size, timestamps or inode have changed, or if it had changed less
    than SETTLED_NS before it was last read. Writes through a memory map, and writes by another host to a network file
    system, are seen only after the kernel reports them. Unreadable files are left out.
    """

    def __init__(self, folder: Path, *, max_files: int, max_bytes: int) -> None:
        self._folder, self._max_files, self._max_bytes = folder, max_files, max_bytes
        self._known: dict[str, tuple[FileState, bytes]] = {}

    def read(self) -> dict[str, bytes]:
        sizes = dict(_walk(self._folder, self._max_files))
        if sum(sizes.values()) > self._max_bytes:
            raise FolderTooLarge(
                f"{self._folder} has more than {self._max_bytes / 1e6:g} MB in files that the agent could read: "
                f"all files would be kept in memory: {SMALLER}"
            )
        root = os.fspath(self._folder)
        known = {}
        for path in sizes:
            with suppress(OSError):
                last = self._known.get(path)
                still = last is not None and last[0] == file_state_of(f"{root}/{path}")
                known[path] = last if last is not None and still else _contents(self._folder / path)
        self._known = known
        return {path: data for path, (_, data) in known.items() if len(data) <= MAX_FILE_BYTES}


class Layered(Mapping[str, bytes]):
    """The files of a FolderFiles with changes on top. In `changes`, None stands for a deleted file."""

    def __init__(self, below: FolderFiles, changes: Mapping[str, bytes | None] | None = None) -> None:
        self.below = below
        self.changes = dict(changes or {})

    def put(self, path: str, data: bytes | None) -> Layered:
        return self.put_all({path: data})

    def put_all(self, changes: Mapping[str, bytes | None]) -> Layered:
        """Return a copy in which these files are changed too. Their original contents stay in memory."""
        for path in changes:
            self.below.keep(path)
        return Layered(self.below, {**self.changes, **changes})

    def __getitem__(self, path: str) -> bytes:
        if path not in self.changes:
            return self.below[path]
        data = self.changes[path]
        if data is None:
            raise KeyError(path)
        return data

    def __contains__(self, path: object) -> bool:
        if path in self.changes:
            return self.changes[str(path)] is not None
        return path in self.below

    def __iter__(self) -> Iterator[str]:
        yield from (path for path in self.below if path not in self.changes)
        yield from (path for path, data in self.changes.items() if data is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def put(files: Mapping[str, bytes], path: str, data: bytes | None) -> Mapping[str, bytes]:
    """Return `files` with `data` as the contents of `path`; None deletes the file."""
    if isinstance(files, FolderFiles):
        files = Layered(files)
    if isinstance(files, Layered):
        return files.put(path, data)
    if data is None:
        return {name: old for name, old in files.items() if name != path}
    return {**files, path: data}


def differing(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """Return the paths whose contents differ. If both mappings are states of one folder (FolderFiles or Layered), only
    the files that are changed in one of them are compared."""
    if one is other:
        return []
    changes, others = _changes(one), _changes(other)
    if changes is None or others is None:
        changes, others = one, other
    return sorted(path for path in changes.keys() | others.keys() if one.get(path) != other.get(path))


def _changes(files: Mapping[str, bytes]) -> Mapping[str, bytes | None] | None:
    """Return how `files` differs from the FolderFiles that it is based on; None if it is not based on any."""
    if isinstance(files, Layered):
        return files.changes
    return {} if isinstance(files, FolderFiles) else None


def pinned(files: Mapping[str, bytes], paths: Iterable[str]) -> Mapping[str, bytes]:
    """Return `files` with the present contents of `paths` stored as changes on top of the folder's files, so that
    `FolderFiles.rebase` cannot replace them. Mappings other than FolderFiles and Layered are returned as they are."""
    if isinstance(files, FolderFiles):
        files = Layered(files)
    return files.put_all({path: files.get(path) for path in paths}) if isinstance(files, Layered) else files


def is_text_name(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk(folder: Path, max_files: int) -> Iterator[tuple[str, int]]:
    found, todo = 0, [""]
    while todo:
        current = todo.pop()
        try:
            with os.scandir(folder / current) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            if not current:
                raise
            continue  # the folder is not accessible or was just deleted
        below = []
        for entry in entries:
            path = f"{current}/{entry.name}" if current else entry.name
            if not is_text_name(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                below += [path] if entry.name not in LEFT_OUT else []
            elif entry.is_file(follow_symlinks=False) and entry.name not in LEFT_OUT:
                with suppress(FileNotFoundError):
                    size = entry.stat(follow_symlinks=False).st_size
                    if size <= MAX_FILE_BYTES:
                        found += 1
                        yield path, size
            if found > max_files:
                raise FolderTooLarge(f"{folder} has more than {max_files} files: {SMALLER}")
        todo += reversed(below)


def _contents(path: Path) -> tuple[FileState, bytes]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise IsADirectoryError(path)
        begun = time.time_ns()
        data = file.read(MAX_FILE_BYTES + 1)
        return settled_state(before, begun, os.fstat(handle)), data
