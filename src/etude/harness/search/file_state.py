"""The state of a file on disk (size, times, inode). A changed state shows that the file may have changed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FileState = tuple[int, int, int, int]
"""Size in bytes, mtime and ctime in ns, and inode of a file."""
UNSURE: FileState = (-1, -1, -1, -1)
"""Stored instead of a file's state if the file might change without a change of its state. It equals no file's state,
so the file counts as changed."""
SETTLED_NS = 2_000_000_000
"""Minimum age, in ns, of a file's last change for its state to be reliable: timestamps are coarse."""


def file_state_of(path: Path | str | bytes) -> FileState | None:
    with suppress(OSError):
        return _state(os.lstat(path))
    return None


def settled_state(before: os.stat_result, begun: int, after: os.stat_result) -> FileState:
    """Return the state of a file that was just read, or UNSURE if the file could change again without a change of its
    state. `begun` is the time in ns at which reading began; `before` and `after` are the stat results around it."""
    state = _state(after)
    return state if state == _state(before) and max(state[1:3]) < begun - SETTLED_NS else UNSURE


def _state(found: os.stat_result) -> FileState:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
