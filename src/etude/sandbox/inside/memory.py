"""Finds the memory of a box that no process has mapped, and the kernel's out-of-memory kills in the box's cgroup.

If a cgroup enforces the memory limit, the kernel counts all memory of the box except answers that wait in netlink
sockets. This module then reads only the size of these answers and the number of kills. Without such a cgroup, it also
searches for the two kinds of memory that have no limit of their own: unnamed files (memfd) that a process holds open,
and System V segments that no process is attached to. The kernel never refuses such memory, so an excess is detected
only at the next check.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from collections.abc import Callable

_SEGMENTS = "/proc/sysvipc/shm"
_NETLINK = "/proc/net/netlink"


def retry_on_enomem(act: Callable[[], None], seconds: float = 5.0) -> None:
    """Repeat `act` for up to `seconds` while it fails with ENOMEM: killed processes may hold the box's memory for a
    moment longer, and then even listing processes can fail."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            act()
            return
        except OSError as error:
            if error.errno != errno.ENOMEM or time.monotonic() > deadline:
                raise
        time.sleep(0.001)


class MemoryEvents:
    """Counter of the kernel's out-of-memory kills in the box's cgroup."""

    def __init__(self, number: int | None) -> None:
        """`number` is a descriptor of the memory-events file of the box's cgroup, which the box itself cannot open.
        None if no cgroup limits memory."""
        self._number, self._seen = number, 0
        self._seen = self._kills()

    @property
    def enforced(self) -> bool:
        return self._number is not None

    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process of the box since the last call. The kernel kills a single process;
        init then ends the whole command."""
        before, self._seen = self._seen, self._kills()
        return self._seen > before

    def _kills(self) -> int:
        if self._number is None:
            return 0
        for line in os.pread(self._number, 4096, 0).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return 0


def memfd_bytes(threads: list[str], seen: set[int]) -> int:
    """Return the bytes of the unnamed files (memfd) that a process holds open, without those whose inodes are in
    `seen`. Add the inodes of the others to `seen`. `threads` are the /proc folders of the process's threads, since each
    thread may hold files of its own."""
    total = 0
    for thread in threads:
        with contextlib.suppress(OSError):
            for number in os.listdir(f"{thread}/fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(f"{thread}/fd/{number}")
                    if file.st_dev == memfd_device() and file.st_ino not in seen:
                        seen.add(file.st_ino)
                        total += file.st_blocks * 512
    return total


@functools.cache
def memfd_device() -> int:
    """Device number of all memfd files. They lie on one file system, which is not mounted in the box."""
    number = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return os.fstat(number).st_dev
    finally:
        os.close(number)


def detached_bytes() -> int:
    """Bytes in System V shared memory segments that no process is attached to."""
    with open(_SEGMENTS) as file:
        return detached_bytes_in(file.read())


def netlink_bytes() -> int:
    """Bytes of answers that no process has read yet from the box's netlink sockets."""
    with open(_NETLINK) as file:
        head, *rows = (line.split() for line in file)
    size = head.index("Rmem")
    return sum(int(row[size]) for row in rows)


def detached_bytes_in(table: str) -> int:
    head, *rows = (line.split() for line in table.splitlines())
    attached, size = head.index("nattch"), head.index("rss")
    return sum(int(row[size]) for row in rows if row[attached] == "0")
