"""Memory of the box beyond what its processes have mapped. A cgroup reports it where one enforces the limit; otherwise
it is searched for here.

The search covers the two kinds of memory that have no limit of their own: unnamed files (memfd) that a process holds
open, and System V segments that no process is attached to. They are found a moment later, not refused.
"""

# Plain strings and descriptors instead of Path, since this runs several times a second for every command.
# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from collections.abc import Callable

_SEGMENTS = "/proc/sysvipc/shm"


def retry_on_enomem(act: Callable[[], None], seconds: float = 5.0) -> None:
    """Retries `act`, which must be safe to restart, while there is no memory: processes that the kernel has killed may
    hold the box's memory for a moment longer, and even listing processes can fail then."""
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
    def __init__(self, number: int | None) -> None:
        """`number` is the cgroup's events file, opened by who can see it; None if no cgroup holds the memory."""
        self._number, self._seen = number, 0
        self._seen = self._kills()

    @property
    def enforced(self) -> bool:
        """Whether a cgroup enforces the memory limit."""
        return self._number is not None

    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process of the box since the last call. The kernel kills a single process; we
        end the whole command that it belongs to, as when we find the excess ourselves."""
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
    """Bytes of unnamed files that a process holds open and that are not in `seen` yet, so each file counts once.
    `threads` are folders of /proc, since each thread may hold files of its own."""
    total = 0
    for thread in threads:
        with contextlib.suppress(OSError):
            for number in os.listdir(f"{thread}/fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(f"{thread}/fd/{number}")
                    if file.st_dev == _device() and file.st_ino not in seen:
                        seen.add(file.st_ino)
                        total += file.st_blocks * 512
    return total


@functools.cache
def _device() -> int:
    """The device number of all memfd files: they lie on one file system, which is mounted nowhere in the box."""
    number = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return os.fstat(number).st_dev
    finally:
        os.close(number)


def detached_bytes() -> int:
    """Bytes in System V segments that no process is attached to."""
    with open(_SEGMENTS) as file:
        return detached_bytes_in(file.read())


def detached_bytes_in(table: str) -> int:
    head, *rows = (line.split() for line in table.splitlines())
    attached, size = head.index("nattch"), head.index("rss")
    return sum(int(row[size]) for row in rows if row[attached] == "0")
