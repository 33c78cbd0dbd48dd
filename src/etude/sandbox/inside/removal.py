"""Removes folder trees that boxes have left, even folders that deny access to their owner or are nested deeper than the
kernel's maximum path length.

Invariant: as in walk.py, no link is followed, so nothing outside of the tree is removed or changed even while somebody
puts links into it.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat

from etude.sandbox.inside import kernel, walk

_LONG = 512
"""Longest path below the tree to remove, in bytes. Folders below a longer one are moved up to the top of the tree, so
that every path stays far below the kernel's 4096 bytes and is quick to resolve."""
_MOVED = itertools.count()
_ANY_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags of `open` that open a folder even if its mode denies access."""


def remove_tree(path: str) -> None:
    """Remove the tree or file, if it exists. Several processes may remove the same tree at once."""
    above, separator, name = path.rstrip("/").rpartition("/")
    try:
        parent = os.open(above or separator or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        top = os.open(name, _ANY_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=parent)
    else:
        try:
            _remove_folders(parent, name, top)
        finally:
            os.close(top)
    finally:
        os.close(parent)


def _remove_folders(parent: int, name: str, top: int) -> None:
    """Remove the open folder `top`, which has this name in `parent`, with everything below it."""
    todo, denied = [""], None
    while todo:
        folder = todo[-1]
        try:
            inner = _remove_files(top, folder)
            if not inner:
                _remove_empty(parent, name, top, folder)
                todo.pop()
            todo += inner
        except PermissionError:
            if not _made_accessible(top, folder) and folder == denied:
                raise
            denied = folder  # Another process may have fixed its mode just after this one was refused.
        except OSError as error:
            if error.errno in walk.ELSEWHERE:
                todo.pop()  # Another process removed, moved or replaced it. What is left is found from the top.
            elif error.errno != errno.ENOTEMPTY or not _has_entries(top, folder):
                raise


def _remove_files(top: int, folder: str) -> list[str]:
    """Remove all entries of the folder except subfolders, whose paths below `top` are returned."""
    number = walk.open_below(top, folder)
    try:
        names = [name for name in os.listdir(number) if not _removed_file(number, name)]
        if len(os.fsencode(folder)) > _LONG:
            return [_moved_to_top(number, name, top) for name in names]
        return [f"{folder}/{name}" if folder else name for name in names]
    finally:
        os.close(number)


def _removed_file(folder: int, name: str) -> bool:
    """Remove an entry of a folder, unless it is a folder itself. Return whether the entry is gone."""
    info = walk.look_at(folder, name)
    if info is not None and stat.S_ISDIR(info.st_mode):
        return False
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except IsADirectoryError:  # Another process has just put a folder there.
        return False
    return True


def _moved_to_top(folder: int, name: str, top: int) -> str:
    number = os.open(name, _ANY_FOLDER, dir_fd=folder)
    try:
        _make_accessible(number)  # Moving a folder changes its ".." entry.
    finally:
        os.close(number)
    higher = f".lifted-{os.getpid()}-{next(_MOVED)}"
    os.rename(name, higher, src_dir_fd=folder, dst_dir_fd=top)
    return higher


def _remove_empty(parent: int, name: str, top: int, folder: str) -> None:
    if not folder:
        os.rmdir(name, dir_fd=parent)
        return
    above, _, last = folder.rpartition("/")
    number = walk.open_below(top, above)
    try:
        os.rmdir(last, dir_fd=number)
    finally:
        os.close(number)


def _made_accessible(top: int, folder: str) -> bool:
    """Give a folder's owner full access, after a PermissionError. Return False if the owner had it already, so that the
    error has another reason."""
    try:
        number = kernel.openat2(top, folder or ".", _ANY_FOLDER, 0, walk.BENEATH)
    except OSError as error:
        if error.errno not in walk.ELSEWHERE:
            raise
        return True
    try:
        if stat.S_IMODE(os.fstat(number).st_mode) & 0o700 == 0o700:
            return False
        _make_accessible(number)
    finally:
        os.close(number)
    return True


def _make_accessible(folder: int) -> None:
    """Give the owner full access to an open folder. This uses the folder's link in /proc, because fchmod does not work
    for descriptors opened with O_PATH."""
    os.chmod(f"/proc/self/fd/{folder}", 0o700)


def _has_entries(top: int, folder: str) -> bool:
    """Whether the folder has entries or is gone. Called if rmdir says that a folder just emptied is not empty: then
    another process must have filled or removed it, or else the error is real."""
    try:
        number = walk.open_below(top, folder)
    except FileNotFoundError:
        return True
    try:
        return bool(os.listdir(number))
    finally:
        os.close(number)
