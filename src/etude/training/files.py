"""Small files that are either whole or absent: written aside, synced, then renamed.

Every failure of the disk becomes one CheckpointError that names the path.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from etude.training.errors import CheckpointError


def write_atomically(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_synced(aside, data)
        aside.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise disk_error(path, len(data), error) from error


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes a rename inside the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(path: Path, size: int, error: OSError) -> CheckpointError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = f"{size / 1e6:.1f} MB"
        return CheckpointError(f"cannot write {path}: the disk is full (needs {need}); free space and run again")
    return CheckpointError(f"cannot write {path}: {error.strerror or error}")
