"""The state of a file on disk, by which a later change of it is noticed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

State = tuple[int, int, int, int]
"""Size, mtime, ctime and inode."""
UNSURE: State = (-1, -1, -1, -1)
SETTLED_NS = 2_000_000_000
"""A file that changed this shortly before it was read may change again without new timestamps: they are coarse."""


def state_of(path: Path | str | bytes) -> State | None:
    """The state of a file; None if there is nothing at the path."""
    with suppress(OSError):
        return _state(os.lstat(path))
    return None


def settled_state(before: os.stat_result, begun: int, after: os.stat_result) -> State:
    """The state of a file that was read at `begun`, in ns; UNSURE if a later change might not show in it."""
    state = _state(after)
    return state if state == _state(before) and max(state[1:3]) < begun - SETTLED_NS else UNSURE


def _state(found: os.stat_result) -> State:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
