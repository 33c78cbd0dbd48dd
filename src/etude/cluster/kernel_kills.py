"""Whether the kernel ended a process for lack of memory, told by the kernel's counters of such kills.

A killed process cannot say why it ended. But the kernel counts its kills: per control group, and for the whole machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

HINT = "`etude run RECIPE --dry-run` says what each stage needs and which field to lower"


@dataclass(frozen=True, slots=True)
class KernelKills:
    """Number of processes that the kernel has killed for lack of memory: in this process's control group, which its
    services share, and on the whole machine. 0 where the kernel does not tell."""

    group: int
    machine: int

    @classmethod
    def count(cls) -> Self:
        group = next((_counter(file) for file in _files_of_group() if file.exists()), 0)
        return cls(group, _counter(Path("/proc/vmstat")))

    def since(self) -> str:
        """Return what to add to the news that a process died, given the counts while it lived; "" if nothing."""
        now = KernelKills.count()
        if now.group > self.group:
            return f"the kernel killed it for lack of memory; {HINT}"
        if now.machine > self.machine:
            return f"perhaps killed by the kernel, which was short of memory meanwhile; {HINT}"
        return ""


def _files_of_group() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {controllers: path.lstrip("/") for _, controllers, path in (line.split(":", 2) for line in lines)}
    found = []
    if "memory" in paths:
        found.append(Path("/sys/fs/cgroup/memory") / paths["memory"] / "memory.oom_control")
    if "" in paths:
        found.append(Path("/sys/fs/cgroup") / paths[""] / "memory.events.local")
    return found


def _counter(file: Path) -> int:
    try:
        rows = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
    except OSError:
        return 0
    return next((int(row[1]) for row in rows if row[:1] == ["oom_kill"]), 0)
