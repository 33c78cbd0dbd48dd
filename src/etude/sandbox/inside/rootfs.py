"""Makes the root directory of a box: an overlay of read-only layers with one cell (the box's writable folder) on top.
The overlay is assembled unmounted and then put into the box's mount namespace.

The same steps make the first root of a new box and the next root of a box that is forked. `replace_root` moves all
processes of a mount namespace to the new root.
"""

# Plain strings and descriptors instead of Path, since this runs for every box.
# ruff: noqa: PTH101, PTH102, PTH116, PTH208

from __future__ import annotations

import contextlib
import os
import stat

from etude.sandbox.inside import kernel
from etude.sandbox.inside.removal import remove_tree
from etude.sandbox.inside.wire import Header
from etude.sandbox.inside.zygote_root import ZygoteSettings

SEAL = "seal"
"""Step name in the StepFailed error that is raised if the box's files cannot be made read-only, because a process has
a file open for writing."""
IMAGE = "the image's"
"""Start of the step name in a StepFailed error that is the image's fault, such as "the image's /proc". It means that a
box needs a folder at that path, but the image has something else there."""
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


def make_cell(settings: ZygoteSettings, cell: str, disk_mb: int) -> None:
    """Make a cell, the folder `cell` that holds what one box writes. If cells are kept in memory, `disk_mb` is the
    maximum size in MiB, and 0 stands for no maximum."""
    os.mkdir(cell)
    if settings.memory:
        limit = f",size={disk_mb}m,nr_inodes={max(4096, disk_mb * 64)}" if disk_mb else ""
        kernel.mount(
            "cell", cell, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=755{limit}", "memory file system"
        )
    os.mkdir(f"{cell}/work")
    os.mkdir(f"{cell}/upper", 0o755)
    if (root := settings.outside_id(0)) is not None:
        os.chown(f"{cell}/upper", root, root)


def remove_cell(settings: ZygoteSettings, cell: str) -> None:
    """Unmount and remove a cell, a folder with what one box has written. Errors are ignored, since the owner process
    removes what is left."""
    if settings.memory:
        with contextlib.suppress(kernel.StepFailed):
            kernel.unmount(cell, "unmount cell")
    with contextlib.suppress(OSError):  # What is left is removed with the owner's scratch folder.
        remove_tree(cell)


def make_root(settings: ZygoteSettings, order: Header, cell: str, layers: list[str]) -> int:
    """Make a box's overlay: read-only `layers` with `cell`, the box's writable folder, on top. Make the folders in it
    that mounts and commands need. Return a descriptor of the overlay, which is not mounted at a path yet."""
    lower = lower_layers(settings, order, layers)
    root = _stack(":".join(lower), cell)
    try:
        for _, target in mounts_for_first_root(settings, order["base"]):
            _make_folder(root, target, settings.outside_id(0))
            os.close(_open_mount_point(root, target))
        _make_folder(root, order["workdir"], settings.outside_id(order["owner"]))
        _copy_attributes(f"{cell}/upper", lower[0])
    except BaseException:
        os.close(root)
        raise
    return root


def _stack(lower: str, cell: str) -> int:
    # index=off: without it, a stale file handle could make overlayfs refuse an upper folder that is used again.
    # volatile: skip syncs, since a cell does not outlive its box. xino=on: a file keeps its inode number when it is
    # first written, since git refuses hard links to files whose inode number changes.
    """Make the overlay of the `lower` layers (joined by ":", topmost first) with the folder `cell` as its writable
    layer. Return a descriptor of the overlay, which is not mounted at a path yet."""
    options = {"userxattr": "", "xino": "on", "index": "off", "volatile": ""}
    options |= {"lowerdir": lower, "upperdir": f"{cell}/upper", "workdir": f"{cell}/work"}
    if len(lower.encode()) <= kernel.LONGEST_OPTION:
        return kernel.make_mount("overlay", options, kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV, "overlay")
    # A long list of layers fits only into the older mount call, which mounts at a path. Unmounting that path waits for
    # all CPUs.
    data = ",".join(f"{name}={value}" if value else name for name, value in options.items())
    kernel.mount("overlay", "root", "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, data, "overlay")
    try:
        return kernel.copy_mount("root", "overlay")
    finally:
        kernel.unmount("root", "overlay")


def lower_layers(settings: ZygoteSettings, order: Header, layers: list[str]) -> list[str]:
    """Return the overlay's lower layers, topmost first: `layers`, then the generated folder tree of the box's image
    base (such as "host"). `order` is the request to make the box, and names the base."""
    return [*layers, f"store/{settings.skeletons[order['base']]}"]


def _copy_attributes(upper: str, below: str) -> None:
    """Copy owner, mode and times of the folder `below`, the topmost lower layer, to the folder `upper`. Overlayfs does
    this by itself for all folders but the top one."""
    info = os.stat(below)
    os.chown(upper, info.st_uid, info.st_gid)
    os.chmod(upper, stat.S_IMODE(info.st_mode))
    os.utime(upper, ns=(info.st_atime_ns, info.st_mtime_ns))


def untouched(cell: str, below: str) -> bool:
    """Return whether the box has written nothing to its cell since the cell was made on top of the folder `below`, the
    topmost lower layer."""
    ours, theirs = os.stat(f"{cell}/upper"), os.stat(below)
    same = all(getattr(ours, name) == getattr(theirs, name) for name in ("st_mode", "st_uid", "st_gid", "st_mtime_ns"))
    return same and not os.listdir(f"{cell}/upper")


def _open_mount_point(root: int, target: str) -> int:
    """Open the folder `target` below the open folder `root`, to mount on it. Raises StepFailed if it is no folder or
    its path contains a symbolic link."""
    try:
        return kernel.openat2(root, target, _PATH, 0, kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_SYMLINKS)
    except OSError as error:
        raise kernel.StepFailed(f"{IMAGE} /{target}", error.errno or 0) from error


def _make_folder(root: int, path: str, owner: int | None) -> None:
    """Make the folder `path` and its missing parents below the open folder `root`, with the owner id `owner`. The
    image's links cannot lead out of `root`."""
    parts = [part for part in path.split("/") if part]
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        try:
            os.close(kernel.openat2(root, folder, os.O_PATH, 0, kernel.RESOLVE_IN_ROOT))
        except FileNotFoundError:
            above = kernel.openat2(root, "/".join(parts[: depth - 1]) or ".", _PATH, 0, kernel.RESOLVE_IN_ROOT)
            try:
                os.mkdir(parts[depth - 1], 0o755, dir_fd=above)
                if owner is not None:
                    os.chown(parts[depth - 1], owner, owner, dir_fd=above, follow_symlinks=False)
            finally:
                os.close(above)


def mounts_for_first_root(settings: ZygoteSettings, base: str) -> list[tuple[str, str]]:
    """Return the mounts to move when a new box gets its root directory, as (source, target). Before that, the box has a
    copy of the zygote's root, where the sources lie."""
    system = [(f"base/{top}", top) for top in settings.top_mounts()] if base == "host" else []
    return [*system, ("dev", "dev"), ("own", "proc")]


def mounts_for_next_root(settings: ZygoteSettings, base: str) -> list[tuple[str, str]]:
    """Return the mounts to move from a box's root directory to the one that replaces it in a fork, as (source,
    target)."""
    return [(target, target) for _, target in mounts_for_first_root(settings, base)]


def replace_root(
    root: int, mount_namespace: int, own_namespace: int, moves: list[tuple[str, str]], *, seal: bool
) -> None:
    """Make the overlay `root` the root directory of a mount namespace, with the mounts `moves` (source, target) moved
    into it. Then close `root` and return to `own_namespace`, the zygote's own mount namespace.

    With `seal`, make the old root read-only first. The kernel refuses that if any process has a file open for writing
    there."""
    try:
        kernel.enter_mounts(mount_namespace)
        if seal:
            kernel.forbid_writing("/", SEAL)
        kernel.attach_mount(root, "/", "put root")
        for source, target in moves:
            goal = _open_mount_point(root, target)
            try:
                kernel.move_mount(f"/{source}", goal, f"move {target}")
            finally:
                os.close(goal)
        kernel.pivot_into(root)
    finally:
        kernel.enter_mounts(own_namespace)
        os.close(root)
