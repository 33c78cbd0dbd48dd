"""Atomic file writes: write to a temporary file, fsync, rename.

Invariant: after a kill or power loss a reader finds either the old file or the complete new one. Disk errors are raised
as plain OSError; packages with their own error family convert them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically, creating its folder if needed. A failed write leaves no temporary file."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_synced(aside, data)
        aside.replace(path)
        sync(path.parent)
    except BaseException:
        # If the cleanup fails too, the first error is the one to report.
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """fsync a file that another function or process wrote, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_problem(error: OSError, size: int = 0) -> str:
    """Describe in one line why a write of `size` bytes failed and, on a full disk, what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = f" (needs {size / 1e6:.1f} MB)" if size else ""
        return f"the disk is full{need}; free some space and run the same command again"
    return error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
