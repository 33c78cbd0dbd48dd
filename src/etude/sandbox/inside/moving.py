"""Moves the live processes of a box to a new root directory: each thread gets the same working folder under the new
root.

pivot_root itself moves the root directory of every process, and every working folder that is the root. All other
threads are made to call chdir (tracing.py). Running programs and private mappings may go on using the old files, since
the old files do not change any more. From the first check until the move is done, all threads are held, so no signal
wakes one meanwhile.

A process that could tell old files from new ones cannot be moved, and the box is copied instead. Such a process has
open files or folders, file watches, sockets with a name in the file system, or shared mappings that show what others
write.
"""

from __future__ import annotations

import os
from contextlib import suppress

from etude.sandbox.inside import kernel, memory, tracing

_MOST_SHARED_BYTES = 32 << 10
"""Maximum total length of the paths of files mapped shared, in bytes. All of them must fit in one message to the
zygote."""


class CannotMove(Exception):
    """A process of the box would notice a move to another root. The message names the process and the reason."""


class WorkingFolder:
    """A thread's working folder, by path, so that the thread can be moved to the folder of that path under a new root.
    `vdso` is the address of the kernel's page of code in the thread's memory."""

    __slots__ = ("link", "path", "thread", "vdso")

    def __init__(self, thread: int, path: str, vdso: int) -> None:
        self.thread, self.path, self.vdso = thread, path, vdso
        self.link = f"/proc/{thread}/cwd"

    def is_current(self) -> bool:
        """Whether the thread is in the folder that its path leads to under the current root. Also true if the thread
        has ended."""
        try:
            current = os.stat(self.link)
        except (FileNotFoundError, ProcessLookupError):
            return True
        try:
            number = kernel.openat2(0, self.path, os.O_PATH | os.O_NOFOLLOW, 0, kernel.RESOLVE_NO_SYMLINKS)
        except OSError:
            return False
        try:
            return os.path.samestat(current, os.fstat(number))
        finally:
            os.close(number)

    def change(self, path: str = "") -> None:
        tracing.change_folder(self.thread, path or self.path, self.vdso)


def rehearse(hold: tracing.Hold) -> tuple[list[WorkingFolder], list[str]]:
    """Hold all processes of the box, and check that they can be moved to a new root, or raise CannotMove. Return the
    working folders to change, and the files that processes map shared. The caller releases the hold in any case.

    If the box has written one of these shared files since its last fork, the caller must not move the processes: the
    mapping would go on showing the old file and miss later changes.

    To prove that threads can be made to change their working folders, each changes to the folder it is in."""
    if not tracing.KNOWN:
        raise CannotMove(f"moving processes is not supported on {kernel.MACHINE}")
    folders: list[WorkingFolder] = []
    shared: set[str] = set()
    try:
        if reason := hold.take_all():
            raise CannotMove(reason)
        _require_no_named_socket()
        view = _View()
        for threads in hold.threads.values():
            vdso, mapped = _mappings(threads[0])
            shared |= mapped
            folders += _rehearsed([folder for thread in threads if (folder := view.working_folder(thread, vdso))])
    except OSError as error:
        raise CannotMove(f"{error.filename or 'a process'}: {error.strerror}") from error
    if sum(len(os.fsencode(path)) for path in shared) > _MOST_SHARED_BYTES:
        raise CannotMove(f"{len(shared)} files are mapped shared")
    return folders, sorted(shared)


def _rehearsed(folders: list[WorkingFolder]) -> list[WorkingFolder]:
    """Make each of a process's threads change to the folder that it is in, as a test. Return the folders to change one
    by one in the real move. Threads usually share one working folder: those that follow the first thread when it
    changes to the root need no change of their own."""
    if len(folders) < 2:
        for folder in folders:
            folder.change()
        return folders
    first, *others = folders
    first.change()
    first.change("/")
    try:
        others = [folder for folder in others if folder.is_current()]
    finally:
        first.change()
    for folder in others:
        folder.change()
    return [first, *others]


def move_to_new_root(folders: list[WorkingFolder]) -> None:
    """Make each held thread change to its folder's path under the current root. Raises CannotMove if a thread does not
    get there. Only a bug of ours can cause that: `rehearse` made the same threads change folders, and none has run
    since."""
    for folder in folders:
        with suppress(OSError):
            if not folder.is_current():
                folder.change()
        if not folder.is_current():
            raise CannotMove(f"thread {folder.thread} was left behind in {folder.path}")


class _View:
    def __init__(self) -> None:
        self._device = os.stat("/").st_dev
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            self._mount = _field(f"/proc/self/fdinfo/{root}", "mnt_id")
        finally:
            os.close(root)

    def working_folder(self, thread: int, vdso: int) -> WorkingFolder | None:
        """Return the thread's working folder; None if the thread can keep it, because it is the root or lies outside
        the box's files. Raises CannotMove for a thread that cannot be moved."""
        self._require_no_open_files(thread)
        info = os.stat(f"/proc/{thread}/cwd")
        if info.st_dev != self._device or os.path.samestat(info, os.stat("/")):
            return None
        folder = WorkingFolder(thread, os.readlink(f"/proc/{thread}/cwd"), vdso)
        if not folder.is_current():
            raise CannotMove(f"thread {thread} has a working folder that has been removed: {folder.path}")
        return folder

    def _require_no_open_files(self, thread: int) -> None:
        for number in os.listdir(f"/proc/{thread}/fd"):
            what, facts = os.readlink(f"/proc/{thread}/fd/{number}"), f"/proc/{thread}/fdinfo/{number}"
            if what.startswith("/") and _field(facts, "mnt_id") == self._mount:
                raise CannotMove(f"thread {thread} has {what} open")
            if what.startswith("socket:") and _field(facts, "scm_fds") not in ("", "0"):
                raise CannotMove(f"thread {thread} has a socket with descriptors that nobody has received yet")
            if what.startswith("anon_inode:inotify"):
                raise CannotMove(f"thread {thread} watches files")


def _field(path: str, name: str) -> str:
    """Return a field of a /proc file, or "" if the kernel does not report it."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return next((line.split()[1] for line in file if line.startswith(f"{name}:")), "")


def _mappings(process: int) -> tuple[int, set[str]]:
    """Return the address of the vdso (the kernel's page of code), and the files that the process maps shared. Raises
    CannotMove if the listed name does not identify a shared file: either the file is deleted (but may have other
    names), or the name holds a backslash, which may stand for another character."""
    vdso, shared = 0, set()
    unnamed = {memory.memfd_device(), os.stat("/dev/shm").st_dev}
    with open(f"/proc/{process}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            words = line.rstrip("\n").split(maxsplit=5)
            if words[-1] == "[vdso]":
                vdso = int(words[0].partition("-")[0], 16)
            elif words[1].endswith("s") and words[-1].startswith("/"):
                major, minor = (int(part, 16) for part in words[3].split(":"))
                if os.makedev(major, minor) in unnamed:
                    continue
                if "\\" in words[-1] or words[-1].endswith(" (deleted)"):
                    raise CannotMove(f"{words[-1]} is mapped shared")
                shared.add(words[-1])
    return vdso, shared


def _require_no_named_socket() -> None:
    """Raise CannotMove if a socket in the box is bound to a path: it could then be reached through the old files
    only."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as sockets:
        for line in sockets:
            name = line.split(maxsplit=7)[7:]
            if name and not name[0].startswith("@") and name[0] != "Path\n":
                raise CannotMove(f"a socket is named {name[0].strip()}")
