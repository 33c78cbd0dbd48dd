"""Two trees: the zygote's small world, made once, and a box's root directory, made per box from ready pieces.

The zygote's world holds only what boxes are made of; a new mount namespace then copies a dozen mounts, not the host's:

    /store   images and layers        /base   the host's system folders, read-only
    /dev     six harmless devices     /proc   the host's, to write id maps
    /cells   what each box writes     /seals  frozen copies for forks     /root   where a box's root is put together
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.inside import kernel

DEVICES = ("null", "zero", "full", "random", "urandom")
_READ_ONLY = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
HOSTNAME = "box"


@dataclass(frozen=True, slots=True)
class World:
    """What the owner tells the zygote at its start; all JSON."""

    store: str
    """The backend's folder on the host."""
    stage: str
    """An empty folder of the host on which the world is mounted."""
    skeleton: str
    """Lowest layer of every box, relative to the world."""
    binds: list[tuple[str, str]]
    """(host folder, folder in the box): read-only. A source starting with "store:" lies in the store."""
    outer_ids: list[int] | None
    """Host ids of the box's root, agent and grader; None: the caller's own id becomes the agent."""
    memory: bool
    """Cells are size-limited memory file systems; else plain folders of the store."""


def enter_user_namespace() -> None:
    """An ordinary user becomes root of a user namespace in which only its own id exists."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER, "user namespace")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise kernel.StepFailed("id map", error.errno or 0) from error


def enter_world(world: World) -> None:
    """Builds the zygote's world and makes it the root directory."""
    kernel.unshare(kernel.CLONE_NEWNS, "mount namespace")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None, "private mounts")
    stage = world.stage
    kernel.mount("etude", stage, "tmpfs", kernel.MS_NOSUID, "mode=755", "memory file system")
    for folder in ("store", "base", "dev", "proc", "cells", "seals", "root"):
        Path(stage, folder).mkdir()
    kernel.mount(world.store, f"{stage}/store", None, kernel.MS_BIND, None, "bind the store")
    for source, target in world.binds:
        place = f"{stage}/base/{target}"
        Path(place).mkdir(parents=True, exist_ok=True)
        if source.startswith("store:"):
            source = f"{stage}/store/{source.removeprefix('store:')}"
        kernel.mount(source, place, None, kernel.MS_BIND | kernel.MS_REC, None, f"bind {source}")
        kernel.restrict_mount(place, _READ_ONLY | kernel.MOUNT_ATTR_NODEV, f"make {source} read-only")
    _make_devices(f"{stage}/dev")
    kernel.mount("/proc", f"{stage}/proc", None, kernel.MS_BIND | kernel.MS_REC, None, "bind /proc")
    kernel.pivot_into(stage)


def _make_devices(folder: str) -> None:
    for name in DEVICES:
        Path(folder, name).touch()
        kernel.mount(f"/dev/{name}", f"{folder}/{name}", None, kernel.MS_BIND, None, f"bind /dev/{name}")
    links = {
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
    }
    for name, goal in {**links, "shm": "/tmp"}.items():
        Path(folder, name).symlink_to(goal)
    kernel.mount(folder, folder, None, kernel.MS_BIND | kernel.MS_REC, None, "bind /dev")
    kernel.restrict_mount(folder, _READ_ONLY, "make /dev read-only")


def make_cell(world: World, cell: str, disk_mb: int) -> None:
    """The folder that takes what one box writes."""
    Path(cell).mkdir()
    if world.memory:
        inodes = max(4096, disk_mb * 64)
        options = f"mode=755,size={disk_mb}m,nr_inodes={inodes}"
        kernel.mount("cell", cell, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options, "memory file system")
    for name in ("upper", "work"):
        Path(cell, name).mkdir()
    Path(cell, "upper").chmod(0o755)
    if world.outer_ids:
        os.chown(f"{cell}/upper", world.outer_ids[0], world.outer_ids[0])


def remove_cell(world: World, cell: str) -> None:
    if world.memory:
        with contextlib.suppress(kernel.StepFailed):
            kernel.unmount(cell, "unmount cell")
    shutil.rmtree(cell, ignore_errors=True)


def enter_box(world: World, cell: str, layers: list[str], workdir: str) -> None:
    """Puts a box's root together and makes it the root directory; called as pid 1 of new namespaces."""
    lower = ":".join([*layers, world.skeleton])
    # Without index, a stale handle can not refuse a re-used upper; volatile spares syncs nobody needs.
    options = f"userxattr,index=off,volatile,lowerdir={lower},upperdir={cell}/upper,workdir={cell}/work"
    kernel.mount("overlay", "root", "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options, "overlay")
    tops = {target for _, target in world.binds if not any(target.startswith(f"{other}/") for _, other in world.binds)}
    for target in sorted(tops):
        kernel.mount(f"base/{target}", f"root/{target}", None, kernel.MS_BIND | kernel.MS_REC, None, f"bind {target}")
    kernel.mount("dev", "root/dev", None, kernel.MS_BIND | kernel.MS_REC, None, "bind /dev")
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "root/proc", "proc", flags, None, "mount proc")
    kernel.pivot_into("root")
    if not os.path.lexists(workdir):
        Path(workdir).mkdir(parents=True)
        owner = world.outer_ids[1] if world.outer_ids else 0
        os.chown(workdir, owner, owner)
    socket.sethostname(HOSTNAME)
    _raise_loopback()


def _raise_loopback() -> None:
    """The box's own loopback; it leads nowhere else."""
    set_flags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, set_flags, struct.pack("16sh14x", b"lo", up_and_running))
