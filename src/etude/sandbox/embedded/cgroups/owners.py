"""Ownership of cgroup folders: each process of Étude locks the folders it makes. A folder without a lock belongs to a
dead process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from etude.sandbox.embedded.cgroups.files import CPU, MEMORY, PIDS, lines
from etude.sandbox.inside import kernel

PREFIX = "etude-"
_VACATED_TO = "etude.home"
"""A cgroup for the processes of our own cgroup, if that must be empty before it can delegate controllers. Some may be
of other programs and live longer, so `remove_dead` leaves it alone."""


def locked_folder(parent: Path) -> tuple[Path, int]:
    """Make a cgroup folder for this process in `parent`. Return it and the descriptor that holds its lock."""
    while True:
        folder = parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # Another process's cleanup has removed it.
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():  # Otherwise a cleanup removed it before it was locked.
            with contextlib.suppress(OSError):
                delegate_controllers(folder, vacate=False)
            return folder, lock
        os.close(lock)


def remove_dead(parent: Path) -> list[str]:
    """Remove the folders in `parent` whose owner is dead; return their names. Processes left in one are killed where
    the kernel has cgroup.kill (Linux 5.14). A folder that still holds processes is left for a later call."""
    removed = []
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            with contextlib.suppress(OSError):  # Exists from Linux 5.14 on.
                kernel.write(folder / "cgroup.kill", "1")
            if remove_folder(folder):
                removed.append(folder.name)
        finally:
            os.close(lock)
    return removed


def remove_folder(folder: Path) -> bool:
    """Remove the folder and its subfolders; return False if that fails."""
    try:
        for below in folder.iterdir():
            if below.is_dir():
                below.rmdir()
        folder.rmdir()
    except OSError:
        return False
    return True


def delegate_controllers(parent: Path, *, vacate: bool) -> None:
    """Delegate the controllers of `parent` to its subfolders. In version 2, `parent` may then hold no processes; with
    `vacate`, they are moved out if necessary."""
    present = set((parent / "cgroup.controllers").read_text().split())
    missing = {MEMORY, PIDS, CPU} & present - set((parent / "cgroup.subtree_control").read_text().split())
    if not missing:
        return
    wanted = " ".join(f"+{name}" for name in sorted(missing))
    try:
        kernel.write(parent / "cgroup.subtree_control", wanted)
    except OSError:
        if not vacate:
            raise
        home = parent / _VACATED_TO
        home.mkdir(exist_ok=True)
        for pid in lines(parent / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                kernel.write(home / "cgroup.procs", pid)
        kernel.write(parent / "cgroup.subtree_control", wanted)
