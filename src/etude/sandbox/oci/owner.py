"""Labels an engine's containers, volumes and images with the process that owns them, and removes those of dead owners.

Normally the engine removes a box when its owner's connection ends. This module is for boxes that are left over because
the engine itself was killed, and for volumes and images, which have no connection. Objects of owners on another machine
or in another container are left alone.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import psutil

from etude.sandbox.oci.api import Engine

OWNER = "etude.owner"
"""The label that holds str(Owner)."""
STORE = "etude.store"
"""The label that names the store of an image; its value is `store_label(root)`."""
FORKS = "localhost/etude/fork"
"""Repository of the images of forks. A tag begins with `Owner.name` of the process that made the image."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of a process that owns objects in an engine. A later process with the same pid has another identity."""

    machine: str
    boot: str
    """The machine's boot id, and the pid namespace in which `pid` is valid."""
    pid: int
    start: float
    """Start time in seconds since the epoch."""
    key: str
    """Random text that distinguishes the backends of one process."""

    @classmethod
    def new(cls) -> Owner:
        return cls(_machine_id(), _boot_id(), os.getpid(), psutil.Process().create_time(), secrets.token_hex(4))

    @property
    def name(self) -> str:
        """Part of the names of the owner's containers, volumes and images."""
        return f"{self.pid}-{self.key}"

    def __str__(self) -> str:
        return "|".join((self.machine, self.boot, str(self.pid), str(self.start), self.key))

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Parse str(Owner). Raise ValueError for any other text."""
        machine, boot, pid, start, key = text.split("|")
        return cls(machine, boot, int(pid), float(start), key)

    def dead(self) -> bool:
        """Whether the owner's process has ended. False if this process cannot know."""
        if self.machine != _machine_id():
            return False
        if self.boot != _boot_id():
            # An earlier boot of this machine is over; another pid namespace of the same boot may be alive.
            return self.boot.partition(":")[0] != _boot_id().partition(":")[0]
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.start) > 1.0)
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def store_label(root: Path) -> str:
    return f"{_machine_id()}|{root}"


async def remove_leftovers(engine: Engine) -> list[str]:
    """Remove the engine's objects whose owners are dead, and the images of stores whose folder is gone. Return their
    names."""
    removed = []
    for kind in ("containers", "volumes"):
        for found in await engine.list_labelled(kind, OWNER):
            name = str(found["Id"] if kind == "containers" else found["Name"])
            if _owner_is_dead(found) and await engine.remove(kind, name):
                removed.append(name)
    for found in await engine.list_labelled("images", STORE):
        for name in found.get("RepoTags") or ():
            # A committed image inherits its box's labels, the owner's included. Only fork images end with their owner.
            dead = _owner_is_dead(found) if name.startswith(f"{FORKS}:") else _store_is_gone(found)
            if dead and await engine.remove("images", name):
                removed.append(name)
    return removed


def _owner_is_dead(found: dict[str, object]) -> bool:
    labels = found.get("Labels")
    try:
        return isinstance(labels, dict) and Owner.parse(labels[OWNER]).dead()
    except (ValueError, KeyError):
        return False


def _store_is_gone(found: dict[str, object]) -> bool:
    labels = found.get("Labels")
    machine, _, root = str(labels.get(STORE, "") if isinstance(labels, dict) else "").partition("|")
    return machine == _machine_id() and bool(root) and not Path(root).exists()


def _machine_id() -> str:
    """systemd's or D-Bus's machine id, or else the host name."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            if text := Path(path).read_text().strip():
                return text
        except OSError:
            continue
    return os.uname().nodename


def _boot_id() -> str:
    """The kernel's boot id and the inode of this process's pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
