"""Entry point of pid 1 in a box that is a container of an engine such as Docker. It runs the same init as boxes of the
embedded backend.

The engine connects the container's stdin and stdout to the owner process. They are the control channel, so the box ends
when the owner ends. Init first enters a new user namespace that maps the container's ids to themselves. In it, init may
change users and make a UTS namespace for each command, but neither init nor the box's root has rights over anything
that belongs to the container.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import sys
from typing import Any

from etude.sandbox.inside import content, files, init, kernel, processes, seccomp, spawn, walk, wire
from etude.sandbox.inside.memory import CgroupMemory

_FIRST_FREE = 10
_NO_FOLDER = (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors in making a folder where the image has a file, a link to nothing, or a link to itself."""
_CLOSED = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
# Files of pid 1 that the kernel lets their owner open. The owner is the container's root, which may also be the box's
# root.
_OWNERS_FILES = ("/proc/1/oom_score_adj", "/proc/1/oom_adj", "/proc/1/coredump_filter")
_OWNERS_FOLDERS = ("/proc/1/fd", "/proc/1/fdinfo", "/proc/1/task")
_UNREADABLE = "/proc/1/map_files"
"""A folder that can be listed only with the right to trace pid 1. It is mounted over other folders to hide them."""


def take_channel() -> tuple[int, int]:
    """Move the control channel from stdin and stdout to other descriptors, and open 0 and 1 on /dev/null."""
    channel = _move_up(0), _move_up(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    os.close(nothing)
    return channel


def _move_up(number: int) -> int:
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


def require_system_calls() -> None:
    """Raise StepFailed if the kernel of this container lacks pidfd_open or openat2, which pid 1 cannot do without.
    gVisor's kernel lacked both until 2024 at least."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(kernel.openat2(kernel.AT_FDCWD, "/", os.O_PATH, 0, 0))
    except OSError as error:
        raise kernel.StepFailed("openat2 and pidfd_open", error.errno or 0) from error


def enter_user_namespace() -> None:
    """Enter a new user namespace that keeps the number of every id of the container."""
    rows = {}
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as file:
            rows[name] = [line.split() for line in file]

    def write_maps(process: int) -> None:
        for name, ranges in rows.items():
            kernel.write(f"/proc/{process}/{name}", "".join(f"{id} {id} {count}\n" for id, _, count in ranges))

    kernel.unshare_user(write_maps, "id map")


def hide_host() -> None:
    """Hide or close what container engines leave accessible. Set-uid programs lose their effect, and /dev becomes
    read-only. Hidden are /sys, the container's name in /proc/self/cgroup, files of /proc that only the host's root may
    read, and files of pid 1 that only their owner may read.

    The mounts that hide all this are made in a new mount namespace, and no process of the box can return to the
    engine's."""
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWCGROUP, "mount namespace")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None, "private mounts")
    forbid_set_uid()
    kernel.mount("closed", "/sys", "tmpfs", _CLOSED, "mode=0700,size=64k", "cover /sys")
    # Files are covered by a socket, which nobody can open as a file, not even root.
    dead = "/sys/closed"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(dead)
    for entry in os.scandir("/proc"):
        if entry.is_file(follow_symlinks=False) and not entry.stat().st_mode & 0o044:
            kernel.mount(dead, entry.path, None, kernel.MS_BIND, None, f"cover {entry.path}")
    for paths, cover in ((_OWNERS_FILES, dead), (_OWNERS_FOLDERS, _UNREADABLE)):
        for path in filter(os.path.exists, paths):
            kernel.mount(cover, path, None, kernel.MS_BIND, None, f"cover {path}")
    os.unlink(dead)
    os.chmod("/sys", 0)
    for path, flags in (("/sys", _CLOSED), ("/dev", kernel.MS_NOSUID | kernel.MS_NOEXEC)):
        again = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY
        kernel.mount("none", path, None, again | flags, None, f"close {path}")


def forbid_set_uid() -> None:
    """Mount everything nosuid. A kernel without mount_setattr (gVisor, Linux before 5.12) gets it on the top mount
    alone; no_new_privs holds in any case."""
    try:
        kernel.restrict_mount("/", kernel.MOUNT_ATTR_NOSUID, "no set-uid programs")
    except kernel.StepFailed as failure:
        if failure.number != errno.ENOSYS:
            raise
        kernel.mount(
            "none", "/", None, kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_NOSUID, None, "no set-uid programs"
        )


class ContainerInit(init.Init):
    """Init of a box that is a container. It adds the request `digest`, which hashes files, since the engine reports
    which paths have changed but not their content. If the box's root has the id of the host's root, no command runs as
    root unless root is the image's default user."""

    def serve(self) -> None:
        with contextlib.suppress(files.Refused):  # The image lacks this user, which `super().serve()` reports.
            if not os.path.isdir(self.workdir):
                owner = self.users.find("")
                try:
                    os.makedirs(self.workdir)
                    os.chown(self.workdir, owner.uid, owner.gid)
                except OSError as error:
                    if error.errno not in _NO_FOLDER:
                        raise
                    self.send({"ready": False, "step": f"{kernel.IMAGE} {self.workdir}", "error": str(error)})
                    return
        super().serve()

    def launch_of(self, header: wire.Header) -> spawn.Launch:
        launch = super().launch_of(header)
        if launch.user.uid == 0 and self.identity.file_user.uid != 0 and not self.message["root_is_apart"]:
            raise files.Refused(
                "user root: this engine's containers share the host's root id; give them ids of their own (Docker: "
                "userns-remap; podman: rootless), or use an image whose own user is root"
            )
        return launch

    def perform(self, header: wire.Header, payload: bytes) -> tuple[wire.Header, bytes | bytearray] | None:
        if header["op"] != "digest":
            return super().perform(header, payload)
        self.identity.be_root()
        try:
            return {"digest": digest_of([path for path in payload.split(b"\0") if path])}, b""
        finally:
            self.identity.restore()


def digest_of(paths: list[bytes]) -> str:
    """Return a digest of the names, kinds, modes, owners, link counts and content of these files, but not their
    times. Raises Refused if a path leads through a link or one of the files is replaced meanwhile."""
    digest = hashlib.blake2b(digest_size=16)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in paths:
            above, _, name = os.fsdecode(path).lstrip("/").rpartition("/")
            folder = kernel.openat2(root, above or ".", os.O_PATH | os.O_DIRECTORY, 0, walk.BENEATH)
            try:
                info, text = _facts(folder, name)
            finally:
                os.close(folder)
            for part in (path, repr((info.st_mode, info.st_uid, info.st_gid, info.st_nlink)).encode(), text):
                digest.update(len(part).to_bytes(8, "big") + part)
    except content.Changed as error:
        raise files.Refused(str(error)) from None
    finally:
        os.close(root)
    return digest.hexdigest()


def _facts(folder: int, name: str) -> tuple[os.stat_result, bytes]:
    """Return the stat result of the entry `name` of a folder, and further bytes that identify its content: the target
    of a link, a digest of a file's content, nothing for other kinds."""
    info = os.stat(name or ".", dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(info.st_mode):
        return info, os.fsencode(os.readlink(name, dir_fd=folder))
    if not stat.S_ISREG(info.st_mode):
        return info, b""
    number = walk.open_file(folder, name)
    try:
        if not walk.same_entry(os.fstat(number), info):
            raise content.Changed(name)
        return info, content.digest_of(number, info)
    finally:
        os.close(number)


def main() -> None:
    message: dict[str, Any] = json.loads(sys.argv[1])
    channel = take_channel()
    os.umask(0o022)
    try:
        program = seccomp.build_program(kernel.MACHINE)
        require_system_calls()
        init.reset_inherited_state()
        processes.open_oom_score()
        enter_user_namespace()
        hide_host()
        init.take_identity(many_ids=True)
    except (OSError, KeyError, kernel.StepFailed) as error:
        step = getattr(error, "step", "machine" if isinstance(error, KeyError) else "box")
        os.write(channel[1], wire.pack({"ready": False, "error": str(error), "step": step}))
        return
    init.run(channel, message, program, many_ids=True, memory=CgroupMemory(None), kind=ContainerInit)
