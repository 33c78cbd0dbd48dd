"""Files that are either whole or absent: written aside, synced, then renamed.

Invariant: whatever kills the process or cuts the power, a reader finds what was there before or all of what is there
now. A failing disk is an OSError as it came; the rooms that have an error family of their own put it into their words.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the file if it exists, makes its folder if there is none; what was written in part does not stay."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_synced(aside, data)
        aside.replace(path)
        sync(path.parent)
    except BaseException:
        # Where even this fails, the first error is the one to tell.
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Puts a file that somebody else wrote on the disk; of a folder, the names in it, renames included."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_problem(error: OSError, size: int = 0) -> str:
    """Why something could not be written, and what to do; `size` is what a full disk would have needed, in bytes."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = f" (needs {size / 1e6:.1f} MB)" if size else ""
        return f"the disk is full{need}; free some space and run the same command again"
    return error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
