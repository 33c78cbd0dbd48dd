"""What the kernel says of the box's memory, where a cgroup holds it."""

from __future__ import annotations

import os


class MemoryEvents:
    def __init__(self, number: int | None) -> None:
        """`number` is the cgroup's file of events, opened by who can see it; None where no cgroup holds the memory."""
        self._number, self._seen = number, 0
        self._seen = self._kills()

    def struck(self) -> bool:
        """Whether the kernel has killed a process of the box since the last call: it takes one process, we the command
        it belongs to, as when we find it out ourselves."""
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
