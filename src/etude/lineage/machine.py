"""The hardware a run used, without anything that identifies the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def this_machine() -> dict[str, Any]:
    """Return the number of CPUs that this process may use, their model name, and the memory in GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpus": len(os.sched_getaffinity(0)), "kind": _kind(), "memory_gib": round(memory, 1)}


def _kind(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
