"""A box's root directory: an overlay of layers with one cell on top, put together beside the box and then put into it.

The same step gives a new box its first root and a forked one its next: `put_root` replaces the root of a mount
namespace in which nothing has a file open for writing, and everybody who lives there stands in the new one.
"""

# Plain strings and descriptors instead of Path: this runs for every box.
# ruff: noqa: PTH101, PTH102, PTH116, PTH208

from __future__ import annotations

import contextlib
import os
import stat

from etude.sandbox.inside import kernel
from etude.sandbox.inside.removal import remove_tree
from etude.sandbox.inside.wire import Header
from etude.sandbox.inside.world import World

SEAL = "seal"
"""The step that fails where somebody still writes."""
IMAGE = "the image's"
"""Begins the step that fails where an image has something in the place of a folder that a box needs."""
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


def make_cell(world: World, cell: str, disk_mb: int) -> None:
    """The folder that takes what one box writes; 0 for one without a limit."""
    os.mkdir(cell)
    if world.memory:
        limit = f",size={disk_mb}m,nr_inodes={max(4096, disk_mb * 64)}" if disk_mb else ""
        kernel.mount(
            "cell", cell, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=755{limit}", "memory file system"
        )
    os.mkdir(f"{cell}/work")
    os.mkdir(f"{cell}/upper", 0o755)
    if (root := world.outer(0)) is not None:
        os.chown(f"{cell}/upper", root, root)


def remove_cell(world: World, cell: str) -> None:
    if world.memory:
        with contextlib.suppress(kernel.StepFailed):
            kernel.unmount(cell, "unmount cell")
    with contextlib.suppress(OSError):  # What stays goes with the owner's scratch.
        remove_tree(cell)


def make_root(world: World, order: Header, cell: str, layers: list[str]) -> int:
    """The overlay, mounted nowhere, as a descriptor; with the folders that mounts and commands need."""
    lower = lower_of(world, order, layers)
    root = _stack(":".join(lower), cell)
    try:
        for _, target in first_moves(world, order["base"]):
            _make_folder(root, target, world.outer(0))
            os.close(_mount_place(root, target))
        _make_folder(root, order["workdir"], world.outer(order["owner"]))
        _look_like(f"{cell}/upper", lower[0])
    except BaseException:
        os.close(root)
        raise
    return root


def _stack(lower: str, cell: str) -> int:
    # Without index, a stale handle can not refuse a re-used upper; volatile spares syncs nobody needs.
    # With xino, a file keeps its inode number when it is written: git refuses hard links to files that change theirs.
    options = {"userxattr": "", "xino": "on", "index": "off", "volatile": ""}
    options |= {"lowerdir": lower, "upperdir": f"{cell}/upper", "workdir": f"{cell}/work"}
    if len(lower.encode()) <= kernel.LONGEST_OPTION:
        return kernel.make_mount("overlay", options, kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV, "overlay")
    # Many layers fit into the older call alone, which mounts at a place; unmounting there waits for all CPUs.
    data = ",".join(f"{name}={value}" if value else name for name, value in options.items())
    kernel.mount("overlay", "root", "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, data, "overlay")
    try:
        return kernel.copy_mount("root", "overlay")
    finally:
        kernel.unmount("root", "overlay")


def lower_of(world: World, order: Header, layers: list[str]) -> list[str]:
    return [*layers, f"store/{world.skeletons[order['base']]}"]


def _look_like(upper: str, below: str) -> None:
    """The top of a root is a folder of the cell; what it is like comes from below, as with every other folder."""
    info = os.stat(below)
    os.chown(upper, info.st_uid, info.st_gid)
    os.chmod(upper, stat.S_IMODE(info.st_mode))
    os.utime(upper, ns=(info.st_atime_ns, info.st_mtime_ns))


def untouched(cell: str, below: str) -> bool:
    """Whether nothing was written since the cell was made on top of that."""
    ours, theirs = os.stat(f"{cell}/upper"), os.stat(below)
    same = all(getattr(ours, name) == getattr(theirs, name) for name in ("st_mode", "st_uid", "st_gid", "st_mtime_ns"))
    return same and not os.listdir(f"{cell}/upper")


def _mount_place(root: int, target: str) -> int:
    """What an image has there must be a folder, not a link to elsewhere."""
    try:
        return kernel.openat2(root, target, _PATH, 0, kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_SYMLINKS)
    except OSError as error:
        raise kernel.StepFailed(f"{IMAGE} /{target}", error.errno or 0) from error


def _make_folder(root: int, path: str, owner: int | None) -> None:
    """Resolved beneath the new root alone, whatever links an image has there."""
    parts = [part for part in path.split("/") if part]
    for depth in range(1, len(parts) + 1):
        place = "/".join(parts[:depth])
        try:
            os.close(kernel.openat2(root, place, os.O_PATH, 0, kernel.RESOLVE_IN_ROOT))
        except FileNotFoundError:
            above = kernel.openat2(root, "/".join(parts[: depth - 1]) or ".", _PATH, 0, kernel.RESOLVE_IN_ROOT)
            try:
                os.mkdir(parts[depth - 1], 0o755, dir_fd=above)
                if owner is not None:
                    os.chown(parts[depth - 1], owner, owner, dir_fd=above, follow_symlinks=False)
            finally:
                os.close(above)


def first_moves(world: World, base: str) -> list[tuple[str, str]]:
    """What goes from a copy of the world into a box's first root."""
    system = [(f"base/{top}", top) for top in world.tops()] if base == "host" else []
    return [*system, ("dev", "dev"), ("own", "proc")]


def later_moves(world: World, base: str) -> list[tuple[str, str]]:
    """What goes from a box's old root into its next one."""
    return [(target, target) for _, target in first_moves(world, base)]


def put_root(root: int, space: int, home: int, moves: list[tuple[str, str]], *, seal: bool) -> None:
    """Makes an overlay the root directory of the mount namespace `space`, closes it, and comes back to `home`, our own.

    With `seal`, the old root is made read-only first: the kernel's own proof that nobody writes there."""
    try:
        kernel.enter_mounts(space)
        if seal:
            kernel.forbid_writing("/", SEAL)
        kernel.attach_mount(root, "/", "put root")
        for source, target in moves:
            goal = _mount_place(root, target)
            try:
                kernel.move_mount(f"/{source}", goal, f"move {target}")
            finally:
                os.close(goal)
        kernel.pivot_into(root)
    finally:
        kernel.enter_mounts(home)
        os.close(root)
