"""Tells a full disk apart from all other errors of the file system, wherever a backend writes to its store."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from etude.sandbox.contract import DiskFull

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""The errnos of a full disk and of an exhausted quota."""


def disk_full(root: Path) -> DiskFull:
    return DiskFull(f"no room in {root}; `etude sandbox images collect` frees what is not used")


@contextlib.contextmanager
def full_disk_as_error(root: Path) -> Iterator[None]:
    """Convert an OSError that a full disk causes in this block to DiskFull. `root` is the store's folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise disk_full(root) from error
