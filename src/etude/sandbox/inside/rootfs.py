"""Makes the root directory of a box: an overlay of read-only layers with one cell (the box's writable folder) on top.
The overlay is assembled unmounted and then put into the box's mount namespace.

The same steps make the first root of a new box and the next root of a box that is forked. `replace_root` moves all
processes of a mount namespace to the new root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from etude.sandbox.inside import kernel, walk
from etude.sandbox.inside.box_ids import BoxIds
from etude.sandbox.inside.removal import remove_tree
from etude.sandbox.inside.views import Views
from etude.sandbox.inside.wire import Header
from etude.sandbox.inside.zygote_root import ZygoteSettings, make_id_namespace, show_ids

CLOSE, SEAL = "close", "seal"
"""Names of the steps that make a box's files read-only, for a while (CLOSE) or for good (SEAL). Both steps fail if a
process has a file open for writing."""
_HOSTS_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO}
"""Errors in making a folder that say nothing about the image in which it is made."""
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_DEVICES, _PROC = "dev", "own"


def make_cell(settings: ZygoteSettings, cell: str, disk_mb: int) -> None:
    """Make the folder that holds what one box writes (its cell). A cell in memory has at most `disk_mb` MiB; 0 means no
    limit."""
    os.mkdir(cell)
    if settings.memory:
        limit = f",size={disk_mb}m,nr_inodes={max(4096, disk_mb * 64)}" if disk_mb else ""
        kernel.mount(
            "cell", cell, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=755{limit}", "memory file system"
        )
    for name in ("work", "upper"):
        os.mkdir(f"{cell}/{name}", 0o755)
        if settings.range_base is not None:
            os.chown(f"{cell}/{name}", settings.range_base, settings.range_base)


def remove_cell(settings: ZygoteSettings, cell: str) -> None:
    if settings.memory:
        with contextlib.suppress(kernel.StepFailed):
            kernel.unmount(cell, "unmount cell")
    with contextlib.suppress(OSError):  # What is left is removed with the owner's scratch folder.
        remove_tree(cell)


def make_root(settings: ZygoteSettings, order: Header, cell: str, layers: list[str], ids: BoxIds, views: Views) -> int:
    """Make a box's overlay of `layers` under `cell`, with the folders that mounts and commands need. Return its
    descriptor; it is not mounted at a path yet."""
    lower = lower_layers(settings, order, layers)
    with views.shown([cell, *lower], ids) as (shown_cell, *shown_lower):
        root = _stack(":".join(shown_lower), shown_cell)
        try:
            for _, target in mounts_for_first_root(settings, order["base"]):
                _make_folder(root, target, _outside_id(ids, 0))
                os.close(_open_mount_point(root, target))
            _make_folder(root, order["workdir"], _outside_id(ids, order["owner"]))
        except BaseException:
            os.close(root)
            raise
    try:
        _copy_attributes(f"{cell}/upper", lower[0])
    except BaseException:
        os.close(root)
        raise
    return root


def _outside_id(ids: BoxIds, inner: int) -> int | None:
    """Return the id in the zygote's namespace that a box sees as `inner`. None if the box has a single id, which is
    the caller's own."""
    return None if ids.first < 0 else ids.first + inner


def can_show_ids(settings: ZygoteSettings, views: Views, cell: str) -> bool:
    """Find out by a trial whether overlayfs can show layers and a cell under other ids: since Linux 5.19, and with
    cells in memory since 6.3, if the file systems support it. Leaves no mount behind."""
    if not settings.spare_ranges or settings.subordinate is not None:
        return False
    base, count = settings.range_base or 0, settings.range_count
    ids = BoxIds(base + count)
    order = {"base": next(iter(settings.skeletons)), "workdir": "/", "owner": 0}
    try:
        make_cell(settings, cell, 1)
        ids.namespace = make_id_namespace([(base, ids.first, count)])
        os.close(make_root(settings, order, cell, [], ids, views))
    except (OSError, kernel.StepFailed):
        return False
    finally:
        views.unmount()
        if ids.namespace >= 0:
            os.close(ids.namespace)
        remove_cell(settings, cell)
    return True


def _stack(lower: str, cell: str) -> int:
    # index=off: without it, a stale file handle could make overlayfs refuse an upper folder that is used again.
    # volatile: skip syncs, since a cell does not outlive its box. xino=on: a file keeps its inode number when it is
    # first written, since git refuses hard links to files whose inode number changes.
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
    """Return the lower layers, topmost first: `layers`, then the generated folder tree of the box's image base."""
    return [*layers, f"store/{settings.skeletons[order['base']]}"]


def _copy_attributes(upper: str, below: str) -> None:
    """Give the folder `upper` the owner, mode and times of `below`. Overlayfs does this by itself for all folders but
    the top one."""
    info = os.stat(below)
    os.chown(upper, info.st_uid, info.st_gid)
    os.chmod(upper, stat.S_IMODE(info.st_mode))
    os.utime(upper, ns=(info.st_atime_ns, info.st_mtime_ns))


def untouched(cell: str, below: str) -> bool:
    """Whether the box has written nothing since its cell was made on top of the layer `below`."""
    ours, theirs = os.stat(f"{cell}/upper"), os.stat(below)
    same = all(getattr(ours, name) == getattr(theirs, name) for name in ("st_mode", "st_uid", "st_gid", "st_mtime_ns"))
    return same and not os.listdir(f"{cell}/upper")


def _open_mount_point(root: int, target: str) -> int:
    """Open the folder `target` below `root`. Raises StepFailed if it is no folder or its path contains a symbolic
    link."""
    try:
        return kernel.openat2(root, target, _PATH, 0, kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_SYMLINKS)
    except OSError as error:
        raise kernel.StepFailed(f"{kernel.IMAGE} /{target}", error.errno or 0) from error


def _make_folder(root: int, path: str, owner: int | None) -> None:
    """Make the folder and its missing parents below `root`, out of which the image's links cannot lead. Raises
    StepFailed if the image has something else there, such as a file or a link to nothing."""
    parts = [part for part in path.split("/") if part]
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        try:
            _make_missing(root, parts[:depth], owner)
        except OSError as error:
            if error.errno in _HOSTS_ERRORS:
                raise
            raise kernel.StepFailed(f"{kernel.IMAGE} /{folder}", error.errno or 0) from error


def _make_missing(root: int, parts: list[str], owner: int | None) -> None:
    """Make a folder if nothing is there. `parts` are the names of its path; its parent exists."""
    try:
        os.close(kernel.openat2(root, "/".join(parts), os.O_PATH, 0, kernel.RESOLVE_IN_ROOT))
    except FileNotFoundError:
        above = kernel.openat2(root, "/".join(parts[:-1]) or ".", _PATH, 0, kernel.RESOLVE_IN_ROOT)
        try:
            os.mkdir(parts[-1], 0o755, dir_fd=above)
            if owner is not None:
                os.chown(parts[-1], owner, owner, dir_fd=above, follow_symlinks=False)
        finally:
            os.close(above)


def holds(layer: str, path: str) -> bool:
    """Whether the layer has an entry at this absolute path of a box."""
    top = walk.open_top(layer)
    try:
        os.close(kernel.openat2(top, path.lstrip("/"), os.O_PATH | os.O_NOFOLLOW, 0, walk.BENEATH))
    except (FileNotFoundError, NotADirectoryError):
        return False
    finally:
        os.close(top)
    return True


def forbid_writes(mount_namespace: int, own_namespace: int, *, forbidden: bool) -> None:
    """Forbid all processes of a box to change its files, or allow it again. The box reaches its files through one
    mount, which is made read-only. Merely stopped processes could be woken; a read-only mount holds nevertheless.

    Raises StepFailed (EBUSY) while a process has a file open for writing."""
    try:
        kernel.enter_mounts(mount_namespace)
        kernel.set_read_only("/", CLOSE, read_only=forbidden)
    finally:
        kernel.enter_mounts(own_namespace)


def mounts_for_first_root(settings: ZygoteSettings, base: str) -> list[tuple[str, str]]:
    """Return the mounts to move when a new box gets its root, as (source, target). Before that, the box has a copy of
    the zygote's root, where the sources lie."""
    system = [(f"base/{top}", top) for top in settings.top_mounts()] if base == "host" else []
    return [*system, (_DEVICES, "dev"), (_PROC, "proc")]


def _move_with_ids(source: str, goal: int, user_namespace: int, step: str) -> None:
    tree = kernel.copy_mount(source, step)
    try:
        # The mounts below /dev are the box's own already, and single devices.
        show_ids(tree, user_namespace, recursive=source != f"/{_DEVICES}")
        kernel.attach_mount(tree, goal, step)
    finally:
        os.close(tree)


def replace_root(
    root: int,
    mount_namespace: int,
    own_namespace: int,
    moves: list[tuple[str, str]],
    *,
    seal: bool,
    user_namespace: int = -1,
) -> None:
    """Make the overlay `root` the root directory of a mount namespace, with the mounts `moves` (source, target) moved
    into it. Close `root` and return to `own_namespace`, the zygote's own.

    With `user_namespace`, the files of the host's root in these mounts appear as files of this namespace's root.

    With `seal`, make the old root read-only first, which the kernel refuses if a process has a file open for
    writing."""
    try:
        kernel.enter_mounts(mount_namespace)
        if seal:
            kernel.forbid_writing("/", SEAL)
        kernel.attach_mount(root, "/", "put root")
        for source, target in moves:
            goal = _open_mount_point(root, target)
            try:
                if user_namespace >= 0 and source != _PROC:
                    _move_with_ids(f"/{source}", goal, user_namespace, f"move {target}")
                else:
                    kernel.move_mount(f"/{source}", goal, f"move {target}")
            finally:
                os.close(goal)
        kernel.pivot_into(root)
    finally:
        kernel.enter_mounts(own_namespace)
        os.close(root)
