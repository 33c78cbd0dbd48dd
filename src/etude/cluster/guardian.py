"""Ends what a cluster leaves when its driver is gone, and removes its folder.

Ray's main processes die with the driver by themselves (the kernel signals them), its workers follow within seconds;
its agents, whatever was just starting, and its temporary folder stay. Whoever comes first sweeps: the driver's own
close, this guardian once the driver is dead, or the next start. A process is ended because it is recorded in the
folder, by pid AND start time, or works in the folder, which is this cluster's alone; never by its name.

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


def members(folder: Path, spared: str) -> list[str]:
    """The living processes of a cluster, but for the spared one, its guardian and this one.

    Ray's own are told by the folder: it stands in their command line until they give themselves a title, and by then
    they have a log open below it. The services record themselves, since their output goes elsewhere.
    """
    found = {who for who in recorded(folder) if alive(who)}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                inside = _works_in(entry, folder)
            except OSError:  # it ended, or belongs to somebody else
                continue
            if inside and (who := identity(int(entry.name))) not in (None, spared):
                found.add(str(who))
    return sorted(found)


def _works_in(process: Path, folder: Path) -> bool:
    command = (process / "cmdline").read_bytes()
    if Path(__file__).name.encode() in command:
        return False
    if f"{folder}/".encode() in command:
        return True
    return any(str(descriptor.readlink()).startswith(f"{folder}/") for descriptor in (process / "fd").iterdir())


def recorded(folder: Path) -> list[str]:
    try:
        lines = (folder / PROCESSES).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if len(line.split()) == 3]


def owner(folder: Path) -> str:
    """Its identity; empty as long as nobody owns the folder, and once it is gone."""
    try:
        return (folder / OWNER).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def owner_alive(folder: Path) -> bool:
    who = owner(folder)
    return bool(who) and alive(who)


def abandoned(folder: Path) -> bool:
    """Has it an owner, and is that one dead? Of a folder that is being made or removed there is nothing to read."""
    who = owner(folder)
    return bool(who) and not alive(who)


def sweep(folder: Path, spared: str = "") -> list[str]:
    """Ends the cluster's processes, then removes the folder; returns the processes that would not end.

    In this order: one of ray's that is just starting makes the folder anew. `spared` is the owner where it lives.
    """
    until = time.monotonic() + END_WITHIN
    while True:
        left = members(folder, spared)
        for who in left:
            end(who)
        if not left:
            shutil.rmtree(folder, ignore_errors=True)
        if not (left or folder.exists()) or time.monotonic() > until:
            return left
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Waits for the end of stdin, held open by the driver, or for the driver's death, whichever is seen first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Read now: the driver's own sweep removes it, while the driver still holds files of the folder open.
    driver = owner(folder)
    if not driver:
        return
    while owner_alive(folder):
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_EVERY)
        if ready and not os.read(0, 1):
            break
    sweep(folder, spared=driver)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
