"""Names of the files of a cgroup, for versions 1 and 2, with functions to read and write them. A value must be written
in a single write, and a missing file must not be created."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.inside import kernel

MEMORY, PIDS, CPU = "memory", "pids", "cpu"
BUFFERS_PART = 4
"""Where socket buffers have a limit of their own, it is the memory limit divided by this."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Files, fields and values of one cgroup version."""

    memory: tuple[tuple[str, str], ...]
    """Memory limits as (file, value); {limit} stands for the limit in bytes. All but the first file may be missing."""
    events: str
    usage: str
    reclaimable: str
    """Field of memory.stat: file pages that have not been used lately."""
    files: str
    """Field of memory.stat: files in memory (tmpfs)."""
    socket_buffers: str
    """File with a separate limit for TCP and UDP buffers, which a kernel may lack; empty if they count towards the
    memory limit."""
    weight: tuple[str, int, int]
    """CPU weight: (file, weight with which a cgroup gets as much CPU time as a single process, maximum)."""
    entry_file: str
    """The file by which a process enters a cgroup. Through "tasks" (version 1 only), the writing thread enters alone
    and at once. "cgroup.procs" moves the whole process, which waits until no other process forks or exits, up to 6
    ms."""


V1 = Settings(
    memory=(("memory.limit_in_bytes", "{limit}"), ("memory.memsw.limit_in_bytes", "{limit}")),
    events="memory.oom_control",
    usage="memory.usage_in_bytes",
    reclaimable="total_inactive_file",
    files="total_shmem",
    socket_buffers="memory.kmem.tcp.limit_in_bytes",
    weight=("cpu.shares", 1024, 1 << 18),
    entry_file="tasks",
)
V2 = Settings(
    memory=(("memory.max", "{limit}"), ("memory.swap.max", "0")),
    events="memory.events",
    usage="memory.current",
    reclaimable="inactive_file",
    files="shmem",
    socket_buffers="",
    weight=("cpu.weight", 100, 10_000),
    entry_file="cgroup.procs",
)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    version: int
    parent: Path
    """The folder in which this process may make cgroups that its child processes may enter."""
    controllers: frozenset[str]

    @property
    def settings(self) -> Settings:
        return V1 if self.version == 1 else V2


def set_limits(hierarchy: Hierarchy, path: Path, memory_bytes: int, processes: int) -> None:
    if MEMORY in hierarchy.controllers:
        (first, value), *others = hierarchy.settings.memory
        kernel.write(path / first, value.format(limit=memory_bytes))
        for name, value in others:
            with contextlib.suppress(FileNotFoundError):
                kernel.write(path / name, value.format(limit=memory_bytes))
        if buffers := hierarchy.settings.socket_buffers:
            with contextlib.suppress(FileNotFoundError):
                kernel.write(path / buffers, str(memory_bytes // BUFFERS_PART))
    if PIDS in hierarchy.controllers:
        kernel.write(path / "pids.max", str(processes))


def lines(path: Path) -> list[str]:
    """Return the lines of a file, or [] if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def stat_of(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in lines(path / "memory.stat") if line.startswith(f"{name} ")), 0)
