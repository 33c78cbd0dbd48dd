"""Owners of a store: each process that has a store open owns a folder in it, with a lock file that the process holds. A
folder whose lock is free belongs to a dead owner.

Invariant: unfinished work lies only in its owner's folder, and is removed with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from etude.sandbox.inside import removal, walk


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a file lock during the block. The kernel releases it if the process dies. Do nothing slow in the block."""
    number = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def remove_dead_owners(owners: Path, remove: Callable[[Path], None] | None = None) -> list[str]:
    """Remove the folders of dead owners, by `remove` (default: remove_tree). Return their names."""
    remove = remove or remove_tree
    removed = []
    for folder in sorted(owners.iterdir()):
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # Another process removed it, or it belongs to another user.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            with contextlib.suppress(PermissionError):  # The files belong to ids that this process may not use.
                remove(folder)
                removed.append(folder.name)
        finally:
            os.close(lock)
    return removed


def remove_tree(path: Path) -> None:
    """Remove a tree or file, if it exists."""
    removal.remove_tree(str(path))


def disk_bytes(folder: Path) -> int:
    """Return the disk use of a tree in bytes. Several names of a file count once. Files that vanish, or lie deeper than
    the longest path, are not counted."""
    seen: set[tuple[int, int]] = set()
    top = walk.open_top(str(folder))
    try:
        total = os.fstat(top).st_blocks * 512
        for _, number, names, enter in walk.walk(top, whole=False):
            for name in names:
                info = walk.look_at(number, name)
                if info is None or (info.st_nlink > 1 and (info.st_dev, info.st_ino) in seen):
                    continue
                if stat.S_ISDIR(info.st_mode):
                    enter.append(name)
                elif info.st_nlink > 1:
                    seen.add((info.st_dev, info.st_ino))
                total += info.st_blocks * 512
    finally:
        os.close(top)
    return total
