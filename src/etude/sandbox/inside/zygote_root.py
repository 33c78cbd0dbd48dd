"""The zygote's root directory: a small tmpfs, made once, with what boxes are made of and nothing else of the host.

    /store  images and layers          /base  the host's system folders, read-only
    /dev    harmless devices           /proc  the host's, to write id maps
    /own    for a box's own /proc      /cells what each box writes          /root  where a new root is assembled
    /views  folders of /store and /cells with a box's ids, while its root is assembled

A box's first mount namespace is a copy of this root as it was before any cell (a box's writable folder) was mounted. So
boxes neither see the cells of other boxes nor spend time on copying their mounts.
"""

from __future__ import annotations

import os
from contextlib import suppress

from etude.sandbox.inside import kernel

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_READ_ONLY = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
HOSTNAME = "box"
SHM_MB = 64
OWNERS = {"work": 1000, "home/agent": 1000, "home/grader": 1001}
"""Paths in a box's generated folder tree that do not belong to root -> id of the owner."""


class ZygoteSettings:
    """What the owner process tells the zygote at its start. All attributes can be written as JSON."""

    def __init__(
        self,
        *,
        store: str,
        stage: str,
        skeletons: dict[str, str],
        binds: list[tuple[str, str]],
        range_base: int | None,
        range_count: int,
        spare_ranges: int,
        subordinate: tuple[int, int] | None,
        memory: bool,
    ) -> None:
        self.store, self.stage = store, stage
        """The backend's folder on the host, and an empty folder on which the zygote's root is mounted."""
        self.skeletons = skeletons
        """Name of an image base (such as "host") -> generated folder tree, relative to the store: the lowest layer of
        all boxes with that base."""
        self.binds = binds
        """Read-only mounts in boxes on the base "host": (host folder, folder in the box). A source "store:..." lies in
        the store."""
        self.range_base, self.range_count = range_base, range_count
        """`range_base`: the id in the zygote's namespace that owns what root owns in a box; None if boxes have one id,
        the caller's own. `range_count`: the number of ids that a box has."""
        self.spare_ranges = spare_ranges
        """Number of further ranges of ids for boxes that get a range of their own. They follow the range that begins at
        `range_base`, and each is as long."""
        self.subordinate = subordinate
        """Set only if boxes use the caller's subordinate ids: the host ids of user 0 and of group 0 of the boxes. In
        the zygote's namespace, both have the id `range_base`."""
        self.memory = memory
        """Whether cells (the folders that boxes write to) are tmpfs mounts with a size limit instead of plain folders
        of the store."""

    @property
    def many_ids(self) -> bool:
        return self.range_base is not None

    def top_mounts(self) -> list[str]:
        """Return the mount points of `binds`, without those that lie below another."""
        targets = {target for _, target in self.binds}
        return sorted(t for t in targets if not any(t.startswith(f"{other}/") for other in targets))


def make_stage(settings: ZygoteSettings) -> None:
    """Enter new mount and network namespaces, and make the zygote's root there, with the store and the folders for
    cells. Change the working directory to it. `fill_and_enter_stage` mounts the rest."""
    # The zygote also gets a network namespace of its own, from which it may enter those of boxes and return.
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET, "mount namespace")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None, "private mounts")
    stage = settings.stage
    kernel.mount("etude", stage, "tmpfs", kernel.MS_NOSUID, "mode=755", "memory file system")
    for folder in ("store", "base", "dev", "proc", "own", "cells", "root", "views"):
        os.mkdir(f"{stage}/{folder}")
    kernel.mount(settings.store, f"{stage}/store", None, kernel.MS_BIND, None, "bind the store")
    for skeleton in settings.skeletons.values():
        _chown_to_boxes(settings, f"{stage}/store/{skeleton}")
    os.chdir(stage)


def trial_cell(settings: ZygoteSettings) -> str:
    """Return the path of a throw-away cell (a folder for a box's files), beside the cells of boxes. `can_show_ids`
    makes it for a trial."""
    scratch = os.path.relpath(os.path.dirname(settings.stage), settings.store)
    return "cells/trial" if settings.memory else f"store/{scratch}/cells/trial"


def fill_and_enter_stage(settings: ZygoteSettings, *, own_ranges: bool) -> None:
    """Mount the host's folders and devices that boxes see into the zygote's root, and make it the root directory. With
    `own_ranges`, these mounts keep the host's ids for now: each box gets them under its own ids later (rootfs.py)."""
    stage = settings.stage
    namespace = -1
    if settings.range_base is not None and not own_ranges:
        namespace = make_id_namespace([(0, settings.range_base, settings.range_count)])
    for source, target in settings.binds:
        place = f"{stage}/base/{target}"
        os.makedirs(place, exist_ok=True)
        if source.startswith("store:"):
            source = f"{stage}/store/{source.removeprefix('store:')}"
        _bind_with_box_ids(source, place, namespace)
    if namespace >= 0:
        os.close(namespace)
    _make_devices(None if own_ranges else settings.range_base, f"{stage}/dev")
    kernel.mount("/proc", f"{stage}/proc", None, kernel.MS_BIND | kernel.MS_REC, None, "bind /proc")
    kernel.pivot_into(stage)


def _chown_to_boxes(settings: ZygoteSettings, skeleton: str) -> None:
    if settings.range_base is None or os.lstat(skeleton).st_uid == settings.range_base:
        return
    places = [(skeleton, 0)]
    for folder, folders, files in os.walk(skeleton):
        for name in (*folders, *files):
            places.append((f"{folder}/{name}", OWNERS.get(os.path.relpath(f"{folder}/{name}", skeleton), 0)))
    for path, inner in reversed(places):  # The top comes last: its owner shows that the tree is done.
        os.chown(path, settings.range_base + inner, settings.range_base + inner, follow_symlinks=False)


def make_id_namespace(rows: list[tuple[int, int, int]]) -> int:
    """Return a descriptor of a new user namespace with this id map (see `write_ids`), for mounts that show files with
    other owners."""
    ready, go = os.pipe()
    pid = kernel.clone(kernel.CLONE_NEWUSER)
    if pid == 0:
        os.close(go)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    try:
        write_ids(f"/proc/{pid}", rows)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(go)
        os.waitpid(pid, 0)


def write_ids(process: str, rows: list[tuple[int, int, int]]) -> None:
    """Write the id maps of a user namespace: rows of (first id inside, first id outside, count). `process` is a folder
    in /proc."""
    lines = "\n".join(" ".join(map(str, row)) for row in rows)
    for kind in ("uid_map", "gid_map"):
        kernel.write(f"{process}/{kind}", lines)


def show_ids(tree: int, namespace: int, *, recursive: bool = True) -> None:
    """Let files of the host's root user in the mount `tree` appear as files of the box's root user, by the id map of
    `namespace`. Otherwise they belong to "nobody" in the box, since the host's root is no user of a box. That stays so
    on file systems that do not support id-mapped mounts."""
    with suppress(kernel.StepFailed):
        kernel.map_mount_ids(tree, namespace, "show ids", recursive=recursive)


def _bind_with_box_ids(source: str, place: str, namespace: int) -> None:
    tree = kernel.copy_mount(source, f"bind {source}")
    if namespace >= 0:
        show_ids(tree, namespace)
    kernel.attach_mount(tree, place, f"bind {source}")
    os.close(tree)
    kernel.restrict_mount(place, _READ_ONLY | kernel.MOUNT_ATTR_NODEV, f"make {source} read-only")


def _make_devices(owner: int | None, folder: str) -> None:
    """Fill the /dev of all boxes. It belongs to `owner`, or to the user who runs this process."""
    for name in DEVICES:
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_CLOEXEC, 0o644))
        kernel.mount(f"/dev/{name}", f"{folder}/{name}", None, kernel.MS_BIND, None, f"bind /dev/{name}")
    for name, goal in _LINKS.items():
        os.symlink(goal, f"{folder}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{folder}/{name}")
    if owner is not None:
        for path in (folder, *(f"{folder}/{name}" for name in (*_LINKS, "pts", "shm"))):
            os.chown(path, owner, owner, follow_symlinks=False)
    kernel.mount(folder, folder, None, kernel.MS_BIND | kernel.MS_REC, None, "bind /dev")
    kernel.restrict_mount(folder, _READ_ONLY, "make /dev read-only")


def enter_user_namespace() -> None:
    """Enter a new user namespace in which only the caller's own id exists, as root. An ordinary user may do this."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER, "user namespace")
    try:
        kernel.write("/proc/self/setgroups", "deny")
        kernel.write("/proc/self/uid_map", f"0 {uid} 1")
        kernel.write("/proc/self/gid_map", f"0 {gid} 1")
    except OSError as error:
        raise kernel.StepFailed("id map", error.errno or 0) from error
