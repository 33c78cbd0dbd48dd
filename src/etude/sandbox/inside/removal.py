"""Removing what a box has left: folders that deny entry to their owner, and nested deeper than a path can say."""

# Plain strings instead of Path: the zygote loads this for all its boxes.
# ruff: noqa: PTH101, PTH104, PTH106, PTH108, PTH112, PTH114

from __future__ import annotations

import itertools
import os
import stat

_LONG = 512
"""Bytes of a path below the top; what lies below a longer one is moved up first: the kernel walks every path from its
beginning, and takes none of more than 4096 bytes."""


def remove_tree(top: str) -> None:
    """Whatever it is; nothing where nothing is. OSError for what cannot be removed."""
    if os.path.islink(top) or not os.path.isdir(top):
        if os.path.lexists(top):
            os.unlink(top)
        return
    lifted, long = itertools.count(), len(os.fsencode(top)) + _LONG
    todo = [top]
    while todo:
        folder = todo[-1]
        try:
            with os.scandir(folder) as found:
                entries = list(found)
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
            if not inner:
                os.rmdir(folder)
                todo.pop()
        except FileNotFoundError:
            todo.pop()  # Another janitor is at work as well.
            continue
        except PermissionError:
            if stat.S_IMODE(os.lstat(folder).st_mode) & 0o700 == 0o700:
                raise
            os.chmod(folder, 0o700)
            continue
        for name in inner:
            place = f"{folder}/{name}"
            if len(os.fsencode(folder)) > long:
                os.chmod(place, 0o700)  # Moving a folder writes its "..".
                higher = f"{top}/.lifted-{os.getpid()}-{next(lifted)}"
                os.rename(place, higher)
                place = higher
            todo.append(place)
