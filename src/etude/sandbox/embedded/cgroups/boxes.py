"""The cgroups of one owner process: in each hierarchy one folder, and in it one cgroup per box."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from etude.sandbox.contract import SandboxError
from etude.sandbox.embedded.cgroups.files import CPU, MEMORY, PIDS, Hierarchy, lines, set_limits, stat_of
from etude.sandbox.embedded.cgroups.finding import find_hierarchies
from etude.sandbox.embedded.cgroups.owners import locked_folder, remove_dead, remove_folder
from etude.sandbox.inside import kernel

_INIT_PIDS = 1
"""Pid 1 counts towards a box's process limit."""
_PID_LIMITS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")


def _most_processes() -> int:
    """Return the process limit for all boxes of one owner together, which leaves a quarter of the host's process ids to
    others."""
    return min(int(Path(path).read_text()) for path in _PID_LIMITS) * 3 // 4


class BoxCgroup:
    """The cgroup folders of one box. A process enters them by writing "0" to each entry file."""

    def __init__(self, folders: list[tuple[Hierarchy, Path]], memory_bytes: int = 0) -> None:
        self._folders, self._limit = folders, memory_bytes
        self._now = memory_bytes
        self._memory = next(((h.settings, path) for h, path in folders if MEMORY in h.controllers), None)

    @property
    def limits_memory(self) -> bool:
        return self._memory is not None

    @contextlib.contextmanager
    def open_entry_files(self) -> Iterator[list[int]]:
        """Yield descriptors of the entry files. By writing to them, a process that cannot see the cgroup's folders
        enters the cgroup with the rights of the process that opened them. If the cgroup limits memory, descriptors of
        its memory-events file and its memory.stat come last."""
        with contextlib.ExitStack() as stack:
            numbers = []
            for hierarchy, path in self._folders:
                numbers.append(os.open(path / hierarchy.settings.entry_file, os.O_WRONLY | os.O_CLOEXEC))
                stack.callback(os.close, numbers[-1])
            if self._memory is not None:
                settings, path = self._memory
                for name in (settings.events, "memory.stat"):
                    numbers.append(os.open(path / name, os.O_RDONLY | os.O_CLOEXEC))
                    stack.callback(os.close, numbers[-1])
            yield numbers

    def memory_bytes(self) -> int | None:
        """The memory that counts towards the limit, without pages that can be reclaimed at once. None without a memory
        cgroup."""
        if self._memory is None:
            return None
        settings, path = self._memory
        used = next((int(line) for line in lines(path / settings.usage)), None)
        return None if used is None else max(0, used - stat_of(path, settings.reclaimable))

    def raise_limit_by_files(self) -> None:
        """Set the box's memory limit to its initial one plus the size of the box's files in memory (tmpfs). Called when
        a fork has made these files read-only, since they then stay in memory."""
        if self._memory is None:
            return
        settings, path = self._memory
        before, self._now = self._now, self._limit + stat_of(path, settings.files)
        # The limit of memory plus swap must never be below that of memory alone, so it is raised first and lowered
        # last.
        for name, value in reversed(settings.memory) if self._now > before else settings.memory:
            with contextlib.suppress(OSError):  # The kernel cannot lower the limit that far, or the box has ended.
                kernel.write(path / name, value.format(limit=self._now))

    def remove(self) -> None:
        """Remove the cgroup after every process of the box has ended. Safe to call twice."""
        for _, path in self._folders:
            with contextlib.suppress(OSError):  # `remove_dead` tries again later.
                path.rmdir()


class Cgroups:
    def __init__(self, hierarchies: list[Hierarchy]) -> None:
        self.controllers = frozenset(name for hierarchy in hierarchies for name in hierarchy.controllers)
        self.limits_buffers = self.buffers_apart = False
        """`limits_buffers`: whether any limit covers socket buffers. `buffers_apart`: whether it is one of their own,
        besides the memory limit."""
        self._ours: list[tuple[Hierarchy, Path, int]] = []
        try:
            for hierarchy in hierarchies:
                ours, lock = locked_folder(hierarchy.parent)
                self._ours.append((hierarchy, ours, lock))
                if MEMORY in hierarchy.controllers:
                    apart = hierarchy.settings.socket_buffers
                    self.buffers_apart = bool(apart) and (ours / apart).exists()
                    self.limits_buffers = not apart or self.buffers_apart
                if CPU in hierarchy.controllers:
                    # All boxes together have the weight of one process per core, and share it evenly: a box with many
                    # processes gets no more CPU time than a box with few, and the owner's process beside them is not
                    # starved.
                    name, one, most = hierarchy.settings.weight
                    kernel.write(ours / name, str(min(one * (os.cpu_count() or 1), most)))
                if PIDS in hierarchy.controllers:
                    kernel.write(ours / "pids.max", str(_most_processes()))
        except OSError:
            self.close()
            raise

    @classmethod
    def find(cls) -> Cgroups | None:
        """Open the usable cgroups; None if there are none. Also removes cgroups that dead processes have left."""
        hierarchies = find_hierarchies()
        for hierarchy in hierarchies:
            remove_dead(hierarchy.parent)
        try:
            return cls(hierarchies) if hierarchies else None
        except OSError:
            return None

    def create(self, name: str, *, memory_bytes: int, processes: int) -> BoxCgroup:
        made: list[tuple[Hierarchy, Path]] = []
        try:
            for hierarchy, ours, _ in self._ours:
                path = ours / name
                path.mkdir()
                made.append((hierarchy, path))
                set_limits(hierarchy, path, memory_bytes, processes + _INIT_PIDS)
        except OSError as error:
            BoxCgroup(made).remove()
            raise SandboxError(f"no cgroup for box {name}: {error}; see `etude sandbox doctor`") from error
        return BoxCgroup(made, memory_bytes)

    def close(self) -> None:
        for _, ours, lock in self._ours:
            remove_folder(ours)
            os.close(lock)
        self._ours = []
