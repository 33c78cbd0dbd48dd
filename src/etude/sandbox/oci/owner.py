"""Who owns what lies in an engine, and the removal of what dead owners have left.

A box ends with its owner's connection, and the engine removes it. This module is for boxes left over when the engine
itself was killed, and for volumes and images, which have no connection. Owners on another machine or in another
container are left alone.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import psutil

from etude.sandbox.oci.api import Engine

OWNER = "etude.owner"
STORE = "etude.store"
FORKS = "localhost/etude/fork"
"""The repository of fork images; the tag begins with the owner's name."""


@dataclass(frozen=True, slots=True)
class Owner:
    machine: str
    boot: str
    """Boot id of the machine, and the pid namespace that the pid belongs to."""
    pid: int
    start: float
    key: str

    @classmethod
    def new(cls) -> Owner:
        return cls(_machine(), _boot(), os.getpid(), psutil.Process().create_time(), secrets.token_hex(4))

    @property
    def name(self) -> str:
        """The start of the names of its containers, volumes and images."""
        return f"{self.pid}-{self.key}"

    def __str__(self) -> str:
        return "|".join((self.machine, self.boot, str(self.pid), str(self.start), self.key))

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Parses what str() wrote; ValueError for anything else."""
        machine, boot, pid, start, key = text.split("|")
        return cls(machine, boot, int(pid), float(start), key)

    def dead(self) -> bool:
        """Whether the owner has ended; False if we cannot know."""
        if self.machine != _machine():
            return False
        if self.boot != _boot():
            # An earlier boot of this machine is over; another pid namespace of the same boot may be alive.
            return self.boot.partition(":")[0] != _boot().partition(":")[0]
        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.start) > 1.0)
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def store_label(root: Path) -> str:
    return f"{_machine()}|{root}"


async def remove_dead(engine: Engine) -> list[str]:
    """Removes what dead owners left, and images of stores whose folder is gone; returns their names."""
    removed = []
    for kind in ("containers", "volumes"):
        for found in await engine.names_with(kind, OWNER):
            name = str(found["Id"] if kind == "containers" else found["Name"])
            if _dead(found) and await engine.remove(kind, name):
                removed.append(name)
    for found in await engine.names_with("images", STORE):
        for name in found.get("RepoTags") or ():
            # An image inherits the labels of the box it was committed from; only fork images belong to their owner
            # alone.
            dead = _dead(found) if name.startswith(f"{FORKS}:") else _abandoned(found)
            if dead and await engine.remove("images", name):
                removed.append(name)
    return removed


def _dead(found: dict[str, object]) -> bool:
    labels = found.get("Labels")
    try:
        return isinstance(labels, dict) and Owner.parse(labels[OWNER]).dead()
    except (ValueError, KeyError):
        return False


def _abandoned(found: dict[str, object]) -> bool:
    labels = found.get("Labels")
    machine, _, root = str(labels.get(STORE, "") if isinstance(labels, dict) else "").partition("|")
    return machine == _machine() and bool(root) and not Path(root).exists()


def _machine() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            if text := Path(path).read_text().strip():
                return text
        except OSError:
            continue
    return os.uname().nodename


def _boot() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
