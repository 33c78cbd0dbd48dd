"""System calls that Python's library lacks. A failure raises `StepFailed`. It names the step of making a box during
which the call was made."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x02000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MS_REMOUNT, MNT_DETACH = 0x20, 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 1, 2, 4, 0x100000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x01, 0x02, 0x04
RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x08, 0x10
CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 6, 7, 21
_PR_SET_SECUREBITS, _KEEP_CAPABILITIES = 28, 1 << 2

AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH, _SIGCHLD, SIGKILL = -100, 0x8000, 0x1000, 17, 9
_OPEN_TREE_CLONE, _MOVE_FROM_EMPTY_PATH, _MOVE_TO_EMPTY_PATH = 1, 0x04, 0x40
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC, _SET_FLAG, _SET_STRING, _CREATE = 1, 1, 0, 1, 6
_SINCE_2018 = {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432}
_SINCE_2018 |= {"openat2": 437, "mount_setattr": 442}
_NUMBERS = {
    "x86_64": {"clone": 56, "ptrace": 101, "pivot_root": 155, "seccomp": 317, **_SINCE_2018},
    "aarch64": {"clone": 220, "ptrace": 117, "pivot_root": 41, "seccomp": 277, **_SINCE_2018},
}
LONGEST_OPTION = 255
_TRIES = 1000
"""Maximum number of attempts of openat2. Resolving ".." fails with EAGAIN whenever any process of the machine renames
or mounts something meanwhile."""
MACHINE = os.uname().machine
_CALL = _NUMBERS.get(MACHINE, {})
# PyDLL keeps the GIL during the call: after a raw clone, the child must hold it.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


IMAGE = "the image's"
"""Start of the name of a failed step that is the image's fault, such as "the image's /proc": a box needs a folder
there, but the image has something else."""


class StepFailed(Exception):
    """A step of making a box failed. `step` is a stable name that embedded/probe.py turns into advice; `number` is the
    errno."""

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
    """Fork into new namespaces (CLONE_NEW* bits); return the child's pid, or 0 in the child. Only for a single-threaded
    process."""
    zero = ctypes.c_long(0)
    return _syscall("clone", "namespaces", ctypes.c_long(flags | _SIGCHLD), zero, zero, zero, zero)


def unshare(flags: int, step: str) -> None:
    _check(_libc.unshare(flags), step)


def unshare_user(write_maps: Callable[[int], None], step: str) -> None:
    """Move this single-threaded process into a new user namespace. Its id maps may be written only from outside, so a
    forked helper that stays outside calls `write_maps` with this process's pid. If that raises OSError, `step` has
    failed."""
    process = os.getpid()
    entered, enter = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = errno.EPERM
        try:
            os.close(enter)
            os.read(entered, 1)  # Returns when the parent closes the pipe.
            write_maps(process)
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)
    try:
        unshare(CLONE_NEWUSER, "user namespace")
    finally:
        os.close(entered)
        os.close(enter)
        _, status = os.waitpid(helper, 0)
    if status:
        raise StepFailed(step, os.waitstatus_to_exitcode(status))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None, step: str) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), step)


def unmount(target: str, step: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), step)


def restrict_mount(target: str, attributes: int, step: str) -> None:
    """Add attributes (MOUNT_ATTR_*) to the mount at `target` and all mounts below it. No attribute is cleared, so this
    also works on locked mounts."""
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    path = ctypes.c_char_p(target.encode())
    _syscall("mount_setattr", step, AT_FDCWD, path, _AT_RECURSIVE, ctypes.c_char_p(wanted), ctypes.c_size_t(32))


def set_read_only(target: str, step: str, *, read_only: bool) -> None:
    """Make a single mount read-only, or writable again. Read-only fails with EBUSY while anybody has a file open for
    writing through this mount or is just changing something."""
    attributes = (MOUNT_ATTR_RDONLY, 0) if read_only else (0, MOUNT_ATTR_RDONLY)
    wanted, path = struct.pack("=QQQQ", *attributes, 0, 0), ctypes.c_char_p(target.encode())
    _syscall("mount_setattr", step, AT_FDCWD, path, 0, ctypes.c_char_p(wanted), ctypes.c_size_t(32))


def copy_mount(path: str, step: str) -> int:
    name = ctypes.c_char_p(path.encode())
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC)
    return _syscall("open_tree", step, AT_FDCWD, name, flags)


def make_mount(kind: str, options: dict[str, str], attributes: int, step: str) -> int:
    """Make a file system without attaching it to a path. An empty option value sets a flag; others have at most
    LONGEST_OPTION bytes."""
    nothing, zero = ctypes.c_char_p(None), ctypes.c_int(0)
    context = _syscall("fsopen", step, ctypes.c_char_p(kind.encode()), ctypes.c_uint(_FSOPEN_CLOEXEC))
    try:
        for name, value in options.items():
            command, text = (_SET_STRING, ctypes.c_char_p(value.encode())) if value else (_SET_FLAG, nothing)
            _syscall("fsconfig", step, context, ctypes.c_uint(command), ctypes.c_char_p(name.encode()), text, zero)
        _syscall("fsconfig", step, context, ctypes.c_uint(_CREATE), nothing, nothing, zero)
        return _syscall("fsmount", step, context, ctypes.c_uint(_FSMOUNT_CLOEXEC), ctypes.c_uint(attributes))
    finally:
        os.close(context)


def map_mount_ids(tree: int, user_namespace: int, step: str, *, recursive: bool = True) -> None:
    """Show the files of an unattached mount tree with other owners: the ids that the user namespace maps them to."""
    wanted = struct.pack("=QQQQ", MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    flags = ctypes.c_uint(_AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0))
    _syscall("mount_setattr", step, tree, ctypes.c_char_p(b""), flags, ctypes.c_char_p(wanted), ctypes.c_size_t(32))


def attach_mount(tree: int, target: str | int, step: str) -> None:
    """Attach an unattached mount tree at a path or at an open folder."""
    if isinstance(target, int):
        folder, name, flags = target, b"", _MOVE_FROM_EMPTY_PATH | _MOVE_TO_EMPTY_PATH
    else:
        folder, name, flags = AT_FDCWD, target.encode(), _MOVE_FROM_EMPTY_PATH
    _syscall("move_mount", step, tree, ctypes.c_char_p(b""), folder, ctypes.c_char_p(name), ctypes.c_uint(flags))


def move_mount(source: str, target: int, step: str) -> None:
    name, flags = ctypes.c_char_p(source.encode()), ctypes.c_uint(_MOVE_TO_EMPTY_PATH)
    _syscall("move_mount", step, AT_FDCWD, name, target, ctypes.c_char_p(b""), flags)


def enter_mounts(namespace: int) -> None:
    """Enter a mount namespace. This process's root and working directory become those of the namespace."""
    _check(_libc.setns(namespace, CLONE_NEWNS), "setns")


def enter_network(namespace: int) -> None:
    _check(_libc.setns(namespace, CLONE_NEWNET), "network gate")


def pivot_into(root: str | int) -> None:
    """Make `root`, a path or an open folder, the root of this mount namespace and all its processes. The old root and
    all mounts below it are detached."""
    os.chdir(root)
    here = ctypes.c_char_p(b".")
    _syscall("pivot_root", "pivot_root", here, here)
    unmount(".", "pivot_root")
    os.chdir("/")


def forbid_writing(path: str, step: str) -> None:
    """Make the whole file system at `path` read-only. Fails with EBUSY if a file is open for writing."""
    mount("none", path, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, None, step)


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write to an existing file in a single write, as /proc and cgroups require."""
    number = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(number, text.encode())
    finally:
        os.close(number)


def openat2(directory: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """Open a file with resolve flags (RESOLVE_*). Magic links are never followed. Raises OSError, as os.open does."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve | RESOLVE_NO_MAGICLINKS)
    name = ctypes.c_char_p(os.fsencode(path))
    tries = 0
    while True:
        try:
            return _syscall("openat2", "openat2", directory, name, ctypes.c_char_p(how), ctypes.c_size_t(24))
        except StepFailed as failure:
            tries += 1
            if failure.number != errno.EAGAIN or tries == _TRIES:
                raise OSError(failure.number, os.strerror(failure.number), path) from None


def ptrace(request: int, thread: int, address: int, data: int | bytes | ctypes.Array[ctypes.c_char]) -> None:
    value = ctypes.c_void_p(data) if isinstance(data, int) else data
    try:
        _syscall("ptrace", "ptrace", ctypes.c_long(request), ctypes.c_long(thread), ctypes.c_void_p(address), value)
    except StepFailed as failure:
        raise OSError(failure.number, os.strerror(failure.number), f"thread {thread}") from None


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")


def act_as(uid: int, gid: int) -> None:
    """Access files as the given user, with all other rights kept. The kernel clears the parent-death signal at every
    change of identity, so it is set again."""
    set_file_ids(uid, gid)
    prctl(PR_SET_PDEATHSIG, SIGKILL)


def set_file_ids(uid: int, gid: int) -> None:
    """Set the ids under which this process accesses and makes files. It is not dumpable afterwards."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)


def keep_capabilities(keep: bool) -> None:
    """Set whether this process keeps its capabilities when it becomes another user."""
    prctl(_PR_SET_SECUREBITS, _KEEP_CAPABILITIES if keep else 0)


def install_filter(program: bytes) -> None:
    block = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(block))
    one, zero = ctypes.c_ulong(1), ctypes.c_ulong(0)
    _syscall("seccomp", "seccomp", one, zero, ctypes.c_char_p(header))


def rename_process(name: str) -> None:
    """Replace the process's name and the command line in /proc, so that a box cannot read host paths from its pid 1."""
    _check(_libc.prctl(15, ctypes.c_char_p(name.encode())), "name")
    start, end = _command_line()
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, name.encode()[: end - start - 1], min(len(name), end - start - 1))


@functools.cache
def _command_line() -> tuple[int, int]:
    """Start and end address of this process's command line in memory, the same in forked children."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46])


def effective_capabilities() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))


# Capabilities of the box's root, which hold within the box only: chown, dac_override, fowner, fsetid, kill, setgid,
# setuid, setpcap, net_bind_service, audit_write, setfcap. None of them concerns mounts, networks or other users'
# memory.
BOX_ROOT = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 29, 31})
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24


def drop_bounding_set(kept: frozenset[int]) -> None:
    """Forbid programs started from now on all capabilities outside `kept`. This process keeps its own."""
    zero = ctypes.c_ulong(0)
    for number in range(64):
        if number in kept:
            continue
        if _libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(number), zero, zero, zero) < 0:
            return  # The kernel knows no further capabilities.
        _check(_libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), zero, zero, zero), "capabilities")
