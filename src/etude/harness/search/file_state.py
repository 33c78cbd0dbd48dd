"""The state of a file on disk (size, times, inode), which shows whether the file has changed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FileState = tuple[int, int, int, int]
"""Size, mtime, ctime and inode."""
UNSURE: FileState = (-1, -1, -1, -1)
"""Equals no file's state. It is stored if a later change of the file might not change its state."""
SETTLED_NS = 2_000_000_000
"""A file that changed less than this before it was read may change again without new timestamps, as they are coarse."""


def file_state_of(path: Path | str | bytes) -> FileState | None:
    """Return the state of a file; None if the path does not exist."""
    with suppress(OSError):
        return _state(os.lstat(path))
    return None


def settled_state(before: os.stat_result, begun: int, after: os.stat_result) -> FileState:
    """Return the state of a file after it was read, or UNSURE if a later change might not change it.

    `begun` is the time in ns at which reading began; `before` and `after` are the file's stat results around it.
    """
    state = _state(after)
    return state if state == _state(before) and max(state[1:3]) < begun - SETTLED_NS else UNSURE


def _state(found: os.stat_result) -> FileState:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
