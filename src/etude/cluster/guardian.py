"""The guardian: a process that kills what a cluster leaves behind when its driver is gone, and removes the cluster's
folder.

Ray's main processes die with the driver by themselves (the kernel signals them), and its workers follow within seconds.
Ray's agents, processes that were just starting, and its temporary folder stay. Whichever comes first cleans up: the
driver's own close, this guardian once the driver is dead, or the next start of a cluster. A process is killed only if
it is recorded in the cluster's folder by pid AND start time, or works in that folder, which belongs to this cluster
alone. No process is killed because of its name.

The guardian runs as a standalone script (`python -I -S guardian.py FOLDER`), so this file imports only the standard
library.
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
"""Names of two files in the cluster's folder, with the identities of the driver and of the recorded processes."""
FOLDER = "ETUDE_CLUSTER_FOLDER"
"""Environment variable by which programs that services start are known to belong to a cluster."""
CHECK_SECONDS = 1.0
"""Seconds between the guardian's checks whether the driver is alive."""
SWEEP_SECONDS = 10.0
"""Time limit of `sweep` for ending all processes, in seconds."""


def identity(pid: int) -> str | None:
    """Return "pid start-ticks boot-id" of a living process; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else f"{pid} {fields[19]} {boot}"


def alive(who: str) -> bool:
    return identity(int(who.split()[0])) == who


def kill(who: str) -> None:
    """Kill the process with this identity by SIGKILL. Do nothing if its pid belongs to another process by now."""
    if alive(who):
        try:
            os.kill(int(who.split()[0]), signal.SIGKILL)
        except ProcessLookupError:
            return


def claim(folder: Path) -> None:
    (folder / OWNER).write_text(f"{identity(os.getpid())}\n")
    (folder / PROCESSES).touch(mode=0o600)


def record(folder: Path, pid: int) -> None:
    """Append a process's identity to the folder's list of processes. Several processes may append at once."""
    who = identity(pid)
    if who is not None:
        with (folder / PROCESSES).open("a") as file:
            file.write(f"{who}\n")


def processes_of(folder: Path, spared: str) -> list[str]:
    """Return the identities of a cluster's living processes, except `spared`, the guardian and this process.

    Ray's own processes are recognised by the folder: it is in their command line until they set their own title, and by
    then they have a log file open below it. The logs of services lie outside the folder, so services are found by the
    identities that are recorded in it."""
    found = {who for who in recorded(folder) if alive(who)}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                inside = _works_in(entry, folder)
            except OSError:  # it ended, or belongs to another user
                continue
            if inside and (who := identity(int(entry.name))) not in (None, spared):
                found.add(str(who))
    return sorted(found)


def _works_in(process: Path, folder: Path) -> bool:
    """Whether a process (its folder in /proc) names the cluster's folder in its command line or environment, or has a
    file open in it."""
    command = (process / "cmdline").read_bytes()
    if Path(__file__).name.encode() in command:
        return False
    if f"{folder}/".encode() in command or f"{FOLDER}={folder}/".encode() in (process / "environ").read_bytes():
        return True
    return any(str(descriptor.readlink()).startswith(f"{folder}/") for descriptor in (process / "fd").iterdir())


def recorded(folder: Path) -> list[str]:
    try:
        lines = (folder / PROCESSES).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if len(line.split()) == 3]


def owner(folder: Path) -> str:
    """Return the identity of the folder's owner; empty if nobody owns the folder yet, or once the folder is gone."""
    try:
        return (folder / OWNER).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def owner_alive(folder: Path) -> bool:
    who = owner(folder)
    return bool(who) and alive(who)


def abandoned(folder: Path) -> bool:
    """Whether the folder's owner is dead. A folder that is being created or removed has no owner: False."""
    who = owner(folder)
    return bool(who) and not alive(who)


def sweep(folder: Path, spared: str = "") -> list[str]:
    """Kill the cluster's processes, then remove its folder. Return the identities of the processes that did not end.

    The processes go first, because a ray process that is just starting would create the folder again. `spared` is the
    identity of the owner, which is not killed if it is alive."""
    until = time.monotonic() + SWEEP_SECONDS
    while True:
        left = processes_of(folder, spared)
        for who in left:
            kill(who)
        if not left:
            shutil.rmtree(folder, ignore_errors=True)
        if not (left or folder.exists()) or time.monotonic() > until:
            return left
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Wait until the driver closes stdin or is dead, then kill the cluster's processes and remove its folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Read the owner now: the driver's own sweep removes the file, and a driver that still has files of the folder open
    # would then be taken for a process to kill.
    driver = owner(folder)
    if not driver:
        return
    while owner_alive(folder):
        ready, _, _ = select.select([sys.stdin], [], [], CHECK_SECONDS)
        if ready and not os.read(0, 1):
            break
    sweep(folder, spared=driver)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
