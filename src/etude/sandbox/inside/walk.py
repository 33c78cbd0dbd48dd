"""Walks a folder tree that somebody else may change meanwhile.

Invariant: every folder is opened below the tree's top without following a link, and every entry is looked at by its own
name in an open folder. So a process that puts a link in the place of a folder cannot lead a walk out of the tree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from etude.sandbox.inside import kernel

BENEATH = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS
LONGEST = 3000
"""Longest path of a folder below the top, in bytes. The kernel allows 4096, and the path of the top needs some of
them."""
ELSEWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ESTALE})
"""Errors of opening a folder that was removed or replaced after it was listed, or that is another mount."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_top(path: str) -> int:
    """Open the top of a tree. Its path must be one that no box can change."""
    return os.open(path, _FOLDER)


def open_below(top: int, path: str, *, mounts: bool = False) -> int:
    """Open the folder `path` below the open folder `top`; "" is the top itself. With `mounts`, it may lie on another
    mount."""
    rule = BENEATH if mounts else BENEATH | kernel.RESOLVE_NO_XDEV
    return kernel.openat2(top, path or ".", _FOLDER, 0, rule)


def open_file(folder: int, name: str) -> int:
    """Open an entry of a folder for reading, without waiting. The caller checks what was opened: where a file was
    listed, there may be something else by now."""
    return os.open(name, _FILE, dir_fd=folder)


def look_at(folder: int, name: str) -> os.stat_result | None:
    """Return the stat result of an entry, or None if it was removed meanwhile."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def same_entry(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two stat results have the same device, inode number and kind of file."""
    return os.path.samestat(one, other) and stat.S_IFMT(one.st_mode) == stat.S_IFMT(other.st_mode)


def walk(top: int, *, mounts: bool = False, whole: bool = True) -> Iterator[tuple[str, int, list[str], list[str]]]:
    """Yield (path, descriptor, names, enter) of each folder below the open folder `top`, a folder before its content.
    The path of the top is "". The descriptor is closed with the next step. Only folders whose names the caller adds to
    `enter` are walked.

    Folders that were removed or replaced meanwhile, or that deny access, are skipped. A path of more than LONGEST bytes
    raises OSError (ENAMETOOLONG); with `whole` unset, it is skipped."""
    todo = [""]
    while todo:
        path = todo.pop()
        if len(os.fsencode(path)) > LONGEST:
            if whole:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
            continue
        try:
            number = open_below(top, path, mounts=mounts)
        except OSError as error:
            if error.errno not in ELSEWHERE | {errno.EACCES}:
                raise
            continue
        enter: list[str] = []
        try:
            yield path, number, sorted(os.listdir(number)), enter
        finally:
            os.close(number)
        todo += [f"{path}/{name}" if path else name for name in reversed(enter)]
