"""The system calls that Python has no function for. A failure is a `StepFailed` that names the step it belongs to."""

# Plain strings and descriptors instead of Path: this runs for every command of every box.
# ruff: noqa: PTH123

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
RESOLVE_NO_MAGICLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x02, 0x08, 0x10
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21

_AT_FDCWD, _AT_RECURSIVE, _SIGCHLD, _SIGKILL = -100, 0x8000, 17, 9
_NUMBERS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "openat2": 437, "mount_setattr": 442, "seccomp": 317},
    "aarch64": {"clone": 220, "pivot_root": 41, "openat2": 437, "mount_setattr": 442, "seccomp": 277},
}
MACHINE = platform.machine()
_CALL = _NUMBERS.get(MACHINE, {})
# PyDLL keeps the interpreter's lock over the call: after a raw clone the child must find it held by itself.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class StepFailed(Exception):
    """A step of building a box failed: `step` is a stable word that probe.py turns into advice."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(f"{step}: {os.strerror(number)} (errno {number})")
        self.step, self.number = step, number


def _check(result: int, step: str) -> int:
    if result < 0:
        raise StepFailed(step, ctypes.get_errno())
    return result


def _syscall(name: str, step: str, *arguments: object) -> int:
    if name not in _CALL:
        raise StepFailed(step, errno.ENOSYS)
    return int(_check(_libc.syscall(ctypes.c_long(_CALL[name]), *arguments), step))


def clone(flags: int) -> int:
    """fork() into new namespaces, in one call; only for a process with a single thread."""
    zero = ctypes.c_long(0)
    return _syscall("clone", "namespaces", ctypes.c_long(flags | _SIGCHLD), zero, zero, zero, zero)


def unshare(flags: int, step: str) -> None:
    _check(_libc.unshare(flags), step)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None, step: str) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), step)


def unmount(target: str, step: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), step)


def restrict_mount(target: str, attributes: int, step: str) -> None:
    """Adds attributes to a whole tree of mounts; never clears one, so it works on locked mounts too."""
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    path = ctypes.c_char_p(target.encode())
    _syscall("mount_setattr", step, _AT_FDCWD, path, _AT_RECURSIVE, ctypes.c_char_p(wanted), ctypes.c_size_t(32))


def pivot_into(root: str) -> None:
    """Makes `root` the root directory and lets go of the old one and everything mounted below it."""
    os.chdir(root)
    here = ctypes.c_char_p(b".")
    _syscall("pivot_root", "pivot_root", here, here)
    unmount(".", "pivot_root")
    os.chdir("/")


def openat2(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """Raises OSError like os.open; magic links are never followed."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve | RESOLVE_NO_MAGICLINKS)
    name = ctypes.c_char_p(os.fsencode(path))
    try:
        return _syscall("openat2", "openat2", directory, name, ctypes.c_char_p(how), ctypes.c_size_t(24))
    except StepFailed as failure:
        raise OSError(failure.number, os.strerror(failure.number), path) from None


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def act_as(uid: int, gid: int) -> None:
    """File access of this process happens as this user, while its other rights stay.

    The kernel takes every change of identity as a reason to forget the death signal; so it is set again."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    prctl(PR_SET_PDEATHSIG, _SIGKILL)


def install_filter(program: bytes) -> None:
    """Installs a seccomp program for this process and all that it starts."""
    block = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(block))
    one, zero = ctypes.c_ulong(1), ctypes.c_ulong(0)
    _syscall("seccomp", "seccomp", one, zero, ctypes.c_char_p(header))


def rename_process(name: str) -> None:
    """Replaces the command line that /proc shows: a box must not read the host's paths from its pid 1."""
    _check(_libc.prctl(15, ctypes.c_char_p(name.encode())), "name")
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, name.encode()[: end - start - 1], min(len(name), end - start - 1))


def effective_capabilities() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
