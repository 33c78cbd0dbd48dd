"""Ends what a cluster leaves when its driver is gone, and removes its folder.

Ray's main processes die with the driver by themselves (the kernel signals them), its workers follow within seconds;
its agents and its temporary folder stay. So every process is recorded in a file, by pid AND start time, and whoever
comes first sweeps: the driver's own close, this guardian once the driver is dead, or the next start. Nothing is ever
ended by its name.

Runs as a script of its own (`python -I -S guardian.py FOLDER`), hence only the standard library and no import of etude.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

OWNER, PROCESSES = "owner", "processes"
LOOK_EVERY = 1.0
END_WITHIN = 10.0


def identity(pid: int) -> str | None:
    """ "pid start-ticks boot-id" of a living process; None for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else f"{pid} {fields[19]} {boot}"


def alive(who: str) -> bool:
    return identity(int(who.split()[0])) == who


def end(who: str) -> None:
    """SIGKILL, only if the pid still belongs to the process recorded."""
    if alive(who):
        try:
            os.kill(int(who.split()[0]), signal.SIGKILL)
        except ProcessLookupError:
            return


def own(folder: Path) -> None:
    (folder / OWNER).write_text(f"{identity(os.getpid())}\n")
    (folder / PROCESSES).touch(mode=0o600)


def record(folder: Path, pid: int) -> None:
    """Appends a process; several processes may append at once."""
    who = identity(pid)
    if who is not None:
        with (folder / PROCESSES).open("a") as file:
            file.write(f"{who}\n")


def notice(folder: Path) -> None:
    """Records the owner's children that have this folder in their command line (ray's own), and their children."""
    owner = int((folder / OWNER).read_text().split()[0])
    known = {int(line.split()[0]) for line in recorded(folder)}
    parents: dict[int, int] = {}
    roots: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            pid, command = int(entry.name), (entry / "cmdline").read_bytes()
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if parents[pid] == owner and str(folder).encode() in command and Path(__file__).name.encode() not in command:
            roots.add(pid)
    for pid, parent in parents.items():
        if (pid in roots or parent in roots) and pid not in known:
            record(folder, pid)


def recorded(folder: Path) -> list[str]:
    try:
        lines = (folder / PROCESSES).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if len(line.split()) == 3]


def owner_alive(folder: Path) -> bool:
    try:
        who = (folder / OWNER).read_text().strip()
    except FileNotFoundError:
        return False
    return bool(who) and alive(who)


def sweep(folder: Path) -> list[str]:
    """Ends every recorded process, removes the folder; returns the processes that would not end."""
    until = time.monotonic() + END_WITHIN
    while True:
        left = [who for who in recorded(folder) if alive(who)]
        if not left or time.monotonic() > until:
            break
        for who in left:
            end(who)
        time.sleep(0.05)
    if not left:
        # A dying process may still write a last log file.
        for _ in range(20):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
    return left


def main(folder: Path) -> None:
    """Waits for the end of stdin, held open by the driver, or for the driver's death, whichever is seen first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while owner_alive(folder):
        notice(folder)
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_EVERY)
        if ready and not os.read(0, 1):
            break
    sweep(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
