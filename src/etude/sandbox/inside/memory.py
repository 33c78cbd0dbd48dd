"""Reads what a box's cgroup tells of its memory, and finds memory that no process has mapped.

If a cgroup enforces the memory limit, the kernel counts all memory of the box except answers that wait in netlink
sockets. Without such a cgroup, this module also searches for the two kinds of memory that have no limit of their own:
unnamed files (memfd) that a process holds open, and System V segments that no process is attached to. The kernel never
refuses such memory, so an excess is detected only at the next check.
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
_PROCESS_FIELDS = (b"anon", b"file_mapped", b"total_rss", b"total_mapped_file")
"""Fields of memory.stat, of cgroups of version 2 and 1."""


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


class CgroupMemory:
    """What the box's cgroup tells about its memory. Its files stay open, so that reading them takes no memory from the
    box, which may have none left."""

    def __init__(self, files: tuple[int, int] | None) -> None:
        """`files` are descriptors of the cgroup's memory-events and memory.stat files, which the box itself cannot
        open. None if no cgroup limits memory."""
        self._files, self._seen = files, 0
        self._seen = self._kills()

    @property
    def enforced(self) -> bool:
        return self._files is not None

    def process_bytes(self) -> int:
        """Bytes that the box's processes have mapped, at least: private memory, mapped files and shared memory. The
        kernel's sum may lag behind by 64 pages for each CPU."""
        if self._files is None:
            return 0
        rows = (line.partition(b" ") for line in os.pread(self._files[1], 1 << 14, 0).splitlines())
        return sum(int(value) for name, _, value in rows if name in _PROCESS_FIELDS)

    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process of the box since the last call. The kernel kills a single process;
        init then ends the whole command."""
        before, self._seen = self._seen, self._kills()
        return self._seen > before

    def _kills(self) -> int:
        if self._files is None:
            return 0
        for line in os.pread(self._files[0], 4096, 0).splitlines():
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


class NetlinkAnswers:
    """Answers that no process has read yet from the box's netlink sockets. The kernel's table of them stays open, like
    the files of the cgroup."""

    def __init__(self) -> None:
        self._table = open(_NETLINK, "rb", buffering=0)  # noqa: SIM115 - open until pid 1 ends

    def size(self) -> int:
        self._table.seek(0)
        head, *rows = (line.split() for line in self._table.read().splitlines())
        size = head.index(b"Rmem")
        return sum(int(row[size]) for row in rows)


def detached_bytes_in(table: str) -> int:
    head, *rows = (line.split() for line in table.splitlines())
    attached, size = head.index("nattch"), head.index("rss")
    return sum(int(row[size]) for row in rows if row[attached] == "0")
