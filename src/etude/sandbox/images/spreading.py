"""Trees that are made and removed all the time, spread over the disk.

ext4 puts a new folder beside the one that it is in, and takes no inode that was freed there minutes ago, but looks at
each: where trees come and go, making a file soon takes milliseconds. A folder that is marked as the top of unrelated
trees has each of them put somewhere else, by its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

_GET_FLAGS, _SET_FLAGS, _TOP_OF_TREES = 0x80086601, 0x40086602, 0x00020000
_FLAGS = struct.Struct("@l")


def spread_trees(folder: Path) -> None:
    """Those that will be made in it. Does nothing where the file system has no such mark."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            (flags,) = _FLAGS.unpack(fcntl.ioctl(number, _GET_FLAGS, bytes(_FLAGS.size)))
            fcntl.ioctl(number, _SET_FLAGS, _FLAGS.pack(flags | _TOP_OF_TREES))
    finally:
        os.close(number)
