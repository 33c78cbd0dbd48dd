"""The files of a cgroup, by version. They take one write of a whole value, and a missing one must not be made."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

MEMORY, PIDS, CPU = "memory", "pids", "cpu"


@dataclass(frozen=True, slots=True)
class Settings:
    """The names of one version's files."""

    memory: tuple[tuple[str, str], ...]
    """(file, value) with {limit}; all but the first may be missing."""
    events: str
    usage: str
    spare: str
    """What of the usage is files' pages that nobody has asked for lately: a line of memory.stat."""
    files: str
    """What of it is files in memory: another one."""
    weight: tuple[str, int, int]
    """(file, what one process weighs by itself, the most there is)"""
    door: str
    """A single thread that moves itself waits for nobody; whole processes wait until no other process forks or ends,
    up to 6 ms. Version 2 has only that."""


V1 = Settings(
    memory=(("memory.limit_in_bytes", "{limit}"), ("memory.memsw.limit_in_bytes", "{limit}")),
    events="memory.oom_control",
    usage="memory.usage_in_bytes",
    spare="total_inactive_file",
    files="total_shmem",
    weight=("cpu.shares", 1024, 1 << 18),
    door="tasks",
)
V2 = Settings(
    memory=(("memory.max", "{limit}"), ("memory.swap.max", "0")),
    events="memory.events",
    usage="memory.current",
    spare="inactive_file",
    files="shmem",
    weight=("cpu.weight", 100, 10_000),
    door="cgroup.procs",
)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    version: int
    place: Path
    """Here we may make folders, and processes of ours may enter them."""
    controllers: frozenset[str]

    @property
    def settings(self) -> Settings:
        return V1 if self.version == 1 else V2


def set_limits(hierarchy: Hierarchy, path: Path, memory_bytes: int, processes: int) -> None:
    if MEMORY in hierarchy.controllers:
        (first, value), *others = hierarchy.settings.memory
        write(path / first, value.format(limit=memory_bytes))
        for name, value in others:
            with contextlib.suppress(FileNotFoundError):
                write(path / name, value.format(limit=memory_bytes))
    if PIDS in hierarchy.controllers:
        write(path / "pids.max", str(processes))


def write(path: Path, text: str) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(number, text.encode())
    finally:
        os.close(number)


def lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def stat_of(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in lines(path / "memory.stat") if line.startswith(f"{name} ")), 0)
