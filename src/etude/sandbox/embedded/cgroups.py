"""Cgroups, where they can be had: limits of a whole box that the kernel itself holds.

Whether they can be had is found by trying: version 1 as root, version 2 as root or where systemd delegates to a user.
Each process of ours keeps one folder per hierarchy under a lock, with one folder per box below it; a folder whose lock
is free belongs to nobody alive, and the next `find` removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.contract import SandboxError

MEMORY, PIDS, CPU = "memory", "pids", "cpu"
PREFIX = "etude-"
_HOME = f"{PREFIX}self"
"""Where we go ourselves if our own cgroup must be free of processes to hand controllers on."""
_PIDS_OF_OURS = 1
"""Pid 1 of the box counts too."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The names of one version's files."""

    memory: tuple[tuple[str, str], ...]
    """(file, value) with {limit}; all but the first may be missing."""
    events: str
    usage: str
    weight: tuple[str, int]
    """(file, what one process weighs by itself)"""


V1 = Settings(
    (("memory.limit_in_bytes", "{limit}"), ("memory.memsw.limit_in_bytes", "{limit}")),
    "memory.oom_control",
    "memory.usage_in_bytes",
    ("cpu.shares", 1024),
)
V2 = Settings(
    (("memory.max", "{limit}"), ("memory.swap.max", "0")), "memory.events", "memory.current", ("cpu.weight", 100)
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


class BoxCgroup:
    """The folders of one box. It is entered by writing "0" to each door, from within."""

    def __init__(self, folders: list[tuple[Hierarchy, Path]]) -> None:
        self._folders = folders
        self._memory = next(((h.settings, path) for h, path in folders if MEMORY in h.controllers), None)

    @property
    def holds_memory(self) -> bool:
        return self._memory is not None

    @contextlib.contextmanager
    def doors(self) -> Iterator[list[int]]:
        """Open descriptors for a process that cannot see the folders, with the rights of who opened them; behind the
        doors, where the memory is held, the file of its events."""
        with contextlib.ExitStack() as stack:
            numbers = []
            for hierarchy, path in self._folders:
                # A single thread that moves itself waits for nobody; whole processes wait until no other process forks
                # or ends, some milliseconds. Version 2 has only that.
                door = "tasks" if hierarchy.version == 1 else "cgroup.procs"
                numbers.append(os.open(path / door, os.O_WRONLY | os.O_CLOEXEC))
                stack.callback(os.close, numbers[-1])
            if self._memory is not None:
                settings, path = self._memory
                numbers.append(os.open(path / settings.events, os.O_RDONLY | os.O_CLOEXEC))
                stack.callback(os.close, numbers[-1])
            yield numbers

    def memory_bytes(self) -> int | None:
        if self._memory is None:
            return None
        settings, path = self._memory
        return next((int(line) for line in _lines(path / settings.usage)), None)

    def remove(self) -> None:
        """Once every process of the box has ended. Safe to call twice."""
        for _, path in self._folders:
            with contextlib.suppress(OSError):  # The janitor tries again.
                path.rmdir()


class Cgroups:
    def __init__(self, hierarchies: list[Hierarchy]) -> None:
        self.controllers = frozenset(name for hierarchy in hierarchies for name in hierarchy.controllers)
        self._ours = [(hierarchy, *_locked_folder(hierarchy.place)) for hierarchy in hierarchies]
        for hierarchy, ours, _ in self._ours:
            if CPU in hierarchy.controllers:
                # Boxes share a core's worth of each core among themselves, evenly: one with many processes gets no
                # more than one with few, and the owner beside them is not starved.
                name, one = hierarchy.settings.weight
                _write(ours / name, str(one * (os.cpu_count() or 1)))

    @classmethod
    def find(cls) -> Cgroups | None:
        """None where nothing of use can be had. Removes what dead owners have left."""
        hierarchies = find_hierarchies()
        for hierarchy in hierarchies:
            remove_dead(hierarchy.place)
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
                _set_limits(hierarchy, path, memory_bytes, processes + _PIDS_OF_OURS)
        except OSError as error:
            BoxCgroup(made).remove()
            raise SandboxError(f"no cgroup for box {name}: {error}; see `etude sandbox doctor`") from error
        return BoxCgroup(made)

    def close(self) -> None:
        for _, ours, lock in self._ours:
            _remove_folder(ours)
            os.close(lock)
        self._ours = []


def _set_limits(hierarchy: Hierarchy, path: Path, memory_bytes: int, processes: int) -> None:
    if MEMORY in hierarchy.controllers:
        (first, value), *others = hierarchy.settings.memory
        _write(path / first, value.format(limit=memory_bytes))
        for name, value in others:
            with contextlib.suppress(FileNotFoundError):
                _write(path / name, value.format(limit=memory_bytes))
    if PIDS in hierarchy.controllers:
        _write(path / "pids.max", str(processes))


# -- finding


@dataclass(frozen=True, slots=True)
class Mount:
    version: int
    point: Path
    root: str
    """Which cgroup of the kernel's tree is mounted there."""
    controllers: frozenset[str]
    """Of version 1; those of version 2 differ from folder to folder."""


def find_hierarchies() -> list[Hierarchy]:
    """At most one hierarchy for each controller; version 2 first, and without memory none."""
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
            _set_limits(hierarchy, trial, 1 << 30, 100)
            return hierarchy if _can_enter(trial) else None
    except OSError:
        return None


def _usable_v2(mount: Mount) -> Hierarchy | None:
    own = own_cgroup(mount, Path("/proc/self/cgroup").read_text())
    # The top first: there a later process finds what a killed one left. Beside us next: no process need be moved.
    for place in dict.fromkeys([mount.point, *((own.parent, own) if own else ())]):
        if not place.is_relative_to(mount.point):
            continue
        try:
            _hand_on_controllers(place, vacate=place == own)
            with _trial(place) as trial:
                controllers = frozenset((trial / "cgroup.controllers").read_text().split()) & {MEMORY, PIDS, CPU}
                if controllers and _can_enter(trial):
                    return Hierarchy(2, place, controllers)
        except OSError:
            continue
    return None


def own_cgroup(mount: Mount, cgroup: str) -> Path | None:
    """The folder of our own cgroup of version 2, if the mount shows it."""
    for line in cgroup.splitlines():
        number, _, path = line.split(":", 2)
        if number == "0" and Path(path).is_relative_to(mount.root):
            return mount.point / Path(path).relative_to(mount.root)
    return None


def _hand_on_controllers(place: Path, *, vacate: bool) -> None:
    """Version 2 gives a controller to folders below only by name, and from a folder without processes."""
    present = set((place / "cgroup.controllers").read_text().split())
    missing = {MEMORY, PIDS, CPU} & present - set((place / "cgroup.subtree_control").read_text().split())
    if not missing:
        return
    wanted = " ".join(f"+{name}" for name in sorted(missing))
    try:
        _write(place / "cgroup.subtree_control", wanted)
    except OSError:
        if not vacate:
            raise
        home = place / _HOME
        home.mkdir(exist_ok=True)
        for pid in _lines(place / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                _write(home / "cgroup.procs", pid)
        _write(place / "cgroup.subtree_control", wanted)


@contextlib.contextmanager
def _trial(place: Path) -> Iterator[Path]:
    trial, lock = _locked_folder(place)
    try:
        yield trial
    finally:
        trial.rmdir()
        os.close(lock)


def _can_enter(folder: Path) -> bool:
    enter = ["/bin/sh", "-c", 'echo 0 >"$1"', "sh", str(folder / "cgroup.procs")]
    return subprocess.run(enter, capture_output=True, check=False).returncode == 0


# -- owners


def _locked_folder(place: Path) -> tuple[Path, int]:
    while True:
        folder = place / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():  # Else a janitor came between the two steps.
            with contextlib.suppress(OSError):
                _hand_on_controllers(folder, vacate=False)
            return folder, lock
        os.close(lock)


def remove_dead(place: Path) -> list[str]:
    """The janitor. Processes of a dead owner end by themselves; a folder that still has some is left for later."""
    removed = []
    for folder in sorted(place.glob(f"{PREFIX}*")):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            if _remove_folder(folder):
                removed.append(folder.name)
        finally:
            os.close(lock)
    return removed


def _remove_folder(folder: Path) -> bool:
    try:
        for below in folder.iterdir():
            if below.is_dir():
                below.rmdir()
        folder.rmdir()
    except OSError:
        return False
    return True


# Cgroup files take one write of a whole value, and a missing one must not be made.


def _write(path: Path, text: str) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(number, text.encode())
    finally:
        os.close(number)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
