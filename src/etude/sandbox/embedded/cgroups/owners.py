"""Whose a cgroup is: each process of ours keeps folders under a lock, and what nobody locks belongs to nobody alive."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from etude.sandbox.embedded.cgroups.files import CPU, MEMORY, PIDS, lines, write

PREFIX = "etude-"
_HOME = "etude.home"
"""Where we go ourselves if our own cgroup must be free of processes to hand controllers on. Who else was there goes
along and may outlive us: no janitor's business."""


def locked_folder(place: Path) -> tuple[Path, int]:
    while True:
        folder = place / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # A janitor came first.
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():  # Else one came between these two steps.
            with contextlib.suppress(OSError):
                hand_on_controllers(folder, vacate=False)
            return folder, lock
        os.close(lock)


def remove_dead(place: Path) -> list[str]:
    """The janitor. Processes of a dead owner end by themselves; where the kernel can end a whole cgroup, also those of
    one whose zygote stands still. A folder that still has some is left for later."""
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
            with contextlib.suppress(OSError):  # Linux 5.14 or newer.
                write(folder / "cgroup.kill", "1")
            if remove_folder(folder):
                removed.append(folder.name)
        finally:
            os.close(lock)
    return removed


def remove_folder(folder: Path) -> bool:
    try:
        for below in folder.iterdir():
            if below.is_dir():
                below.rmdir()
        folder.rmdir()
    except OSError:
        return False
    return True


def hand_on_controllers(place: Path, *, vacate: bool) -> None:
    """Version 2 gives a controller to folders below only by name, and from a folder without processes."""
    present = set((place / "cgroup.controllers").read_text().split())
    missing = {MEMORY, PIDS, CPU} & present - set((place / "cgroup.subtree_control").read_text().split())
    if not missing:
        return
    wanted = " ".join(f"+{name}" for name in sorted(missing))
    try:
        write(place / "cgroup.subtree_control", wanted)
    except OSError:
        if not vacate:
            raise
        home = place / _HOME
        home.mkdir(exist_ok=True)
        for pid in lines(place / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                write(home / "cgroup.procs", pid)
        write(place / "cgroup.subtree_control", wanted)
