"""The hardware a run used, without anything that identifies the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container's limit stands, by version 2 and 1 of cgroups."""


def this_machine() -> dict[str, Any]:
    """Return the number of CPUs that this process may use, their model name, and the memory in GiB."""
    memory = _installed_bytes() / 2**30
    return {"cpus": len(os.sched_getaffinity(0)), "kind": _kind(), "memory_gib": round(memory, 1)}


def memory_bytes(limits: Sequence[str] = _LIMITS) -> int:
    """Return the bytes of memory that this process may use: those of the machine, or of its container if that has a
    limit."""
    found = (Path(limit) for limit in limits)
    return min(
        [
            _installed_bytes(),
            *(int(said) for file in found if file.is_file() and (said := file.read_text().strip()).isdecimal()),
        ]
    )


def _installed_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _kind(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
