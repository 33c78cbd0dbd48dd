"""Removes folder trees that boxes have left, even folders that deny access to their owner or are nested deeper than the
kernel's maximum path length."""

# Plain strings instead of Path, since the zygote loads this for all its boxes.
# ruff: noqa: PTH101, PTH104, PTH106, PTH108, PTH112, PTH114

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat

_LONG = 512
"""Maximum length in bytes of a folder's path below `top`, the tree to remove. The subfolders of a folder with a longer
path are moved up, directly below `top`. So every path stays far below 4096 bytes, the most that the kernel accepts, and
is quick to resolve."""
_MOVED = itertools.count()


def remove_tree(top: str) -> None:
    """Remove the tree or file, if it exists. Raises OSError if a part of it cannot be removed. Several processes may
    remove the same tree at once."""
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
    """Remove all entries of the folder except subfolders. Return the paths of the subfolders."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
    return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _moved_to_top(folder: str, top: str) -> str:
    """Move `folder` up, so that its parent is `top`, and return its new path."""
    os.chmod(folder, 0o700)  # Moving a folder changes its ".." entry.
    higher = f"{top}/.lifted-{os.getpid()}-{next(_MOVED)}"
    os.rename(folder, higher)
    return higher


def _made_accessible(folder: str) -> bool:
    """Give the folder's owner full access if the folder's mode denied it. Return False if the mode was not the reason
    for a PermissionError."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_IMODE(os.lstat(folder).st_mode) & 0o700 == 0o700:
            return False
        os.chmod(folder, 0o700)
    return True


def _has_entries(folder: str) -> bool:
    """Called when removing `folder` has failed because it was not empty. Return False only if the folder exists and has
    no entries now: then the failure has no explanation. Return True, to try again, if there are entries (another
    process has moved them there) or the folder is gone."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        return any(found)
    return True
