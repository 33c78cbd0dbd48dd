"""Reports which files below a folder changed since the last poll, using inotify.

The result of `poll` contains every file whose contents, name or mode changed before the call, or it says that changes
were lost. There are two exceptions, because of inotify: writes through a memory map are reported only when the file is
closed and unmapped, and writes through a hard link outside the folder are never reported.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from etude.harness.search.ignore_rules import IGNORE_FILES

RULES = frozenset({b".git", *map(os.fsencode, IGNORE_FILES)})
"""Names of the files and folders that decide which files ripgrep searches."""

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO = 0x2, 0x4, 0x8, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED, _IS_FOLDER = 0x2000, 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS, _NO_LINKS, _EXCLUDE_UNLINKED = 0x1000000, 0x2000000, 0x4000000
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_WANTED = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _MOVE_SELF | _DELETE_SELF
_HEAD = struct.Struct("iIII")

_TELLING = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs", "zfs", "bcachefs", "overlay", "ramfs", "jfs", "reiserfs"}
)
"""Types of file systems that can only be changed through this kernel, so that inotify reports every change. Network
file systems are missing for this reason."""


class CannotWatch(Exception):
    """The folder cannot be watched, because the kernel or a file system would not report every change."""


@dataclass(slots=True)
class Changes:
    paths: set[bytes] = field(default_factory=set)
    """Changed paths relative to the root. Some files may no longer exist, or may have been moved with their folder."""
    rules: bool = False
    lost: bool = False
    """Whether changes may be missing from this result. The watch must then be replaced."""


class Watch:
    def __init__(self, root: bytes) -> None:
        """Raises CannotWatch if the kernel or a file system does not report every change."""
        for kind in file_systems(root):
            if kind not in _TELLING:
                raise CannotWatch(f"a file system of type {kind} may change without inotify events")
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folders: dict[int, bytes] = {}
        self.repositories: set[bytes] = set()
        """Folders below the root with their own `.git`."""
        self._handle = self._libc.inotify_init1(_NONBLOCK | _CLOEXEC)
        if self._handle < 0:
            raise CannotWatch(os.strerror(ctypes.get_errno()))
        try:
            for _ in self._add(b""):
                pass
        except BaseException:
            self.close()
            raise

    def poll(self) -> Changes:
        changes = Changes()
        for number, mask, name in self._events():
            if mask & (_OVERFLOW | _UNMOUNT):
                changes.lost = True
            elif mask & _IGNORED:
                self._folders.pop(number, None)
            elif number in self._folders:
                self._take(mask, name, self._folders[number], changes)
        return changes

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _take(self, mask: int, name: bytes, folder: bytes, changes: Changes) -> None:
        path = _below(folder, name)
        if mask & (_MOVE_SELF | _DELETE_SELF):
            # For a folder below the root, its parent reports the event as well.
            changes.lost |= folder == b"" or bool(mask & _MOVE_SELF)
            return
        if name in RULES:
            changes.rules = True
        if name == b".git":
            self.repositories.add(folder)
        elif not mask & _IS_FOLDER:
            changes.paths.add(path)
        elif mask & (_MOVED_FROM | _ATTRIB):
            # A moved folder keeps its watches, which then report paths that no longer exist. A folder whose permissions
            # changed may show or hide all files in it.
            changes.lost = True
        elif mask & (_CREATE | _MOVED_TO):
            try:
                changes.paths.update(self._add(path))
            except CannotWatch:
                changes.lost = True

    def _add(self, top: bytes) -> Iterator[bytes]:
        """Watch a folder and all folders below it, and yield their files."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            full = _below(self._root, folder)
            mask = _WANTED | _ONLY_FOLDERS | _NO_LINKS | _EXCLUDE_UNLINKED
            # The folder is watched before it is listed, so that changes in between are reported.
            number = self._libc.inotify_add_watch(self._handle, ctypes.c_char_p(full), ctypes.c_uint32(mask))
            if number < 0:
                problem = ctypes.get_errno()
                if problem in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM):
                    continue
                raise CannotWatch(os.strerror(problem))
            self._folders[number] = folder
            try:
                with os.scandir(full) as entries:
                    for entry in entries:
                        path = _below(folder, entry.name)
                        if entry.name == b".git":
                            self.repositories.add(folder)
                        elif entry.is_dir(follow_symlinks=False):
                            waiting.append(path)
                        else:
                            yield path
            except OSError:
                continue

    def _events(self) -> Iterator[tuple[int, int, bytes]]:
        while True:
            try:
                data = os.read(self._handle, 1 << 20)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                yield number, mask, data[at - length : at].rstrip(b"\0")


def file_systems(root: bytes) -> set[str]:
    """Return the types of the file system that contains the root, and of all those mounted below it."""
    place = os.fsdecode(root)
    kinds, holding, longest = set(), "", -1
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").split("\n"):
        fields, _, rest = line.partition(" - ")
        if not rest:
            continue
        point = fields.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
        kind = rest.split(" ")[0]
        if point.startswith(f"{place.rstrip('/')}/"):
            kinds.add(kind)
        elif (place == point or place.startswith(f"{point.rstrip('/')}/")) and len(point) >= longest:
            holding, longest = kind, len(point)
    return kinds | {holding}


def _below(folder: bytes, name: bytes) -> bytes:
    return b"%b/%b" % (folder, name) if folder and name else folder or name
