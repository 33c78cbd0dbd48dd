"""Removes folder trees that boxes have left, even folders that deny access to their owner or are nested deeper than the
kernel's maximum path length."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat

_LONG = 512
"""Longest path below the tree to remove, in bytes. Folders below a longer one are moved up to the top of the tree, so
that every path stays far below the kernel's 4096 bytes and is quick to resolve."""
_MOVED = itertools.count()


def remove_tree(top: str) -> None:
    """Remove the tree or file, if it exists. Several processes may remove the same tree at once."""
    if os.path.islink(top) or not os.path.isdir(top):
        if os.path.lexists(top):
            os.unlink(top)
        return
    long = len(os.fsencode(top)) + _LONG
    todo, denied = [top], ""
    while todo:
        folder = todo[-1]
        try:
            inner = _remove_files(folder)
            if len(os.fsencode(folder)) > long:
                inner = [_moved_to_top(path, top) for path in inner]
            if not inner:
                os.rmdir(folder)
                todo.pop()
            todo += inner
        except FileNotFoundError:
            todo.pop()  # Another process removed or moved this folder. Moved folders are found from the top.
        except PermissionError:
            if not _made_accessible(folder) and folder == denied:
                raise
            denied = folder  # Another process may have fixed its mode just after this one was refused.
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not _has_entries(folder):
                raise


def _remove_files(folder: str) -> list[str]:
    """Remove all entries except subfolders, whose paths are returned."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
    return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _moved_to_top(folder: str, top: str) -> str:
    os.chmod(folder, 0o700)  # Moving a folder changes its ".." entry.
    higher = f"{top}/.lifted-{os.getpid()}-{next(_MOVED)}"
    os.rename(folder, higher)
    return higher


def _made_accessible(folder: str) -> bool:
    """Give the owner full access. Return False if the mode was not the reason for a PermissionError."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_IMODE(os.lstat(folder).st_mode) & 0o700 == 0o700:
            return False
        os.chmod(folder, 0o700)
    return True


def _has_entries(folder: str) -> bool:
    """Whether another process has filled the folder, or removed it, since removing it failed because it was not empty.
    If not, that failure has no explanation."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        return any(found)
    return True
