"""Finds usable cgroup hierarchies by trying the operations that boxes need."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.embedded.cgroups.files import CPU, MEMORY, PIDS, Hierarchy, set_limits
from etude.sandbox.embedded.cgroups.owners import delegate_controllers, locked_folder, remove_folder


@dataclass(frozen=True, slots=True)
class Mount:
    version: int
    point: Path
    root: str
    """The cgroup at the top of this mount, as a path in the kernel's cgroup tree."""
    controllers: frozenset[str]
    """Controllers of this mount, of those that boxes need. Unused in version 2, where controllers differ from folder to
    folder."""


def find_hierarchies() -> list[Hierarchy]:
    """Return at most one hierarchy per controller, version 2 first; none at all if the memory controller is missing."""
    found: list[Hierarchy] = []
    for mount in sorted(read_mounts(Path("/proc/self/mountinfo").read_text()), key=lambda mount: -mount.version):
        have = frozenset(name for hierarchy in found for name in hierarchy.controllers)
        if mount.version == 2:
            usable = _usable_v2(mount)
        elif mount.controllers - have:
            usable = _usable_v1(mount)
        else:
            continue
        if usable is not None:
            found.append(usable)
    return found if any(MEMORY in hierarchy.controllers for hierarchy in found) else []


def read_mounts(mountinfo: str) -> list[Mount]:
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(maxsplit=2)
        point = Path(fields[4].encode().decode("unicode_escape"))
        if kind in ("cgroup", "cgroup2"):
            version = 2 if kind == "cgroup2" else 1
            mounts.append(Mount(version, point, fields[3], frozenset(options.split(",")) & {MEMORY, PIDS, CPU}))
    return mounts


def _usable_v1(mount: Mount) -> Hierarchy | None:
    hierarchy = Hierarchy(1, mount.point, mount.controllers)
    try:
        with _trial(mount.point) as trial:
            set_limits(hierarchy, trial, 1 << 30, 100)
            return hierarchy if _can_enter(trial) else None
    except OSError:
        return None


def _usable_v2(mount: Mount) -> Hierarchy | None:
    own = own_cgroup(mount, Path("/proc/self/cgroup").read_text())
    # Try the top first, since later processes search it for what a killed process left. Then try the folder that holds
    # our own cgroup, for which no process has to be moved, and our own cgroup last.
    for parent in dict.fromkeys([mount.point, *((own.parent, own) if own else ())]):
        if not parent.is_relative_to(mount.point):
            continue
        try:
            delegate_controllers(parent, vacate=parent == own)
            with _trial(parent) as trial:
                controllers = frozenset((trial / "cgroup.controllers").read_text().split()) & {MEMORY, PIDS, CPU}
                if controllers and _can_enter(trial):
                    return Hierarchy(2, parent, controllers)
        except OSError:
            continue
    return None


def own_cgroup(mount: Mount, cgroup: str) -> Path | None:
    """Return the folder of this process's version 2 cgroup, or None if this mount does not show it. `cgroup` is the
    text of /proc/self/cgroup."""
    for line in cgroup.splitlines():
        number, _, path = line.split(":", 2)
        if number == "0" and Path(path).is_relative_to(mount.root):
            return mount.point / Path(path).relative_to(mount.root)
    return None


@contextlib.contextmanager
def _trial(parent: Path) -> Iterator[Path]:
    """Yield a temporary cgroup made just as those of boxes: in a new, locked folder. In version 2, that folder
    delegates its controllers and therefore may hold no process itself."""
    ours, lock = locked_folder(parent)
    try:
        trial = ours / "trial"
        trial.mkdir()
        yield trial
    finally:
        remove_folder(ours)
        os.close(lock)


def _can_enter(folder: Path) -> bool:
    enter = ["/bin/sh", "-c", 'echo 0 >"$1"', "sh", str(folder / "cgroup.procs")]
    return subprocess.run(enter, capture_output=True, check=False).returncode == 0
