"""Moves live processes to a new root: a thread whose working folder is in the box's files gets the same one there.

The kernel itself moves roots, and working folders that are the root. Every other thread changes its folder by a system
call that is made on its behalf (tracing.py). Programs and private mappings of the old files may stay, since sealed
files keep their content. A process that could tell old files from new ones cannot be moved, and the box is copied
instead: one with open files or folders, file watches, sockets with a name in the file system, shared mappings that show
what others write, or seccomp filters that could kill it during the move.
"""

# Plain strings and descriptors instead of Path, as everywhere in `inside`.
# ruff: noqa: PTH115, PTH116, PTH123, PTH208

from __future__ import annotations

import os
from contextlib import suppress

from etude.sandbox.inside import kernel, processes, tracing


class CannotMove(Exception):
    """A process cannot be moved to another root without noticing; the message says which one, and why."""


class WorkingFolder:
    """The working folder of a thread."""

    __slots__ = ("link", "path", "thread", "vdso")

    def __init__(self, thread: int, path: str, vdso: int) -> None:
        self.thread, self.path, self.vdso = thread, path, vdso
        self.link = f"/proc/{thread}/cwd"

    def is_current(self) -> bool:
        """Whether the thread's working folder is the one now found at `path`. Also true if the thread has ended."""
        try:
            current = os.stat(self.link)
        except (FileNotFoundError, ProcessLookupError):
            return True
        try:
            return os.path.samestat(current, os.stat(self.path))
        except OSError:
            return False

    def change(self) -> None:
        tracing.change_folder(self.thread, self.path, self.vdso)


def rehearse() -> tuple[list[WorkingFolder], list[str]]:
    """Returns the working folders that a new root would leave behind, and the files that are mapped shared. Shared
    files of the box's image are fine; those that the box has written are not.

    All threads must be stopped. Every process is made to change to the folder it is in, as a proof."""
    if not tracing.KNOWN:
        raise CannotMove(f"the registers of {kernel.MACHINE} are not known")
    folders: list[WorkingFolder] = []
    shared: set[str] = set()
    try:
        _require_no_named_socket()
        view = _View()
        for process in processes.living():
            vdso, mapped = _mappings(process)
            shared |= mapped
            found = [folder for thread in _threads(process) if (folder := view.working_folder(thread, vdso))]
            # Threads usually share their folder; one with its own is moved with all others later.
            for folder in found[:1]:
                folder.change()
            folders += found
    except OSError as error:
        raise CannotMove(f"{error.filename or 'a process'}: {error.strerror}") from error
    return folders, sorted(shared)


def move_to_new_root(folders: list[WorkingFolder]) -> None:
    """Moves all threads to the box's current root."""
    for folder in folders:
        with suppress(OSError):
            if not folder.is_current():
                folder.change()
        if not folder.is_current():
            raise CannotMove(f"thread {folder.thread} was left behind in {folder.path}")


class _View:
    """Threads as seen from the box's root."""

    def __init__(self) -> None:
        self._device = os.stat("/").st_dev
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            self._mount = _field(f"/proc/self/fdinfo/{root}", "mnt_id")
        finally:
            os.close(root)
        self._filters = _field("/proc/self/status", "Seccomp_filters")

    def working_folder(self, thread: int, vdso: int) -> WorkingFolder | None:
        """The thread's working folder; None if it is elsewhere or the kernel moves it; CannotMove if it holds files."""
        if _field(f"/proc/{thread}/status", "Seccomp_filters") != self._filters:
            raise CannotMove(f"thread {thread} has filters of its own for system calls")
        self._require_no_open_files(thread)
        info = os.stat(f"/proc/{thread}/cwd")
        if info.st_dev != self._device or os.path.samestat(info, os.stat("/")):
            return None
        folder = WorkingFolder(thread, os.readlink(f"/proc/{thread}/cwd"), vdso)
        if not folder.is_current():
            raise CannotMove(f"thread {thread} stands in a folder that is gone: {folder.path}")
        return folder

    def _require_no_open_files(self, thread: int) -> None:
        for number in os.listdir(f"/proc/{thread}/fd"):
            what, facts = os.readlink(f"/proc/{thread}/fd/{number}"), f"/proc/{thread}/fdinfo/{number}"
            if what.startswith("/") and _field(facts, "mnt_id") == self._mount:
                raise CannotMove(f"thread {thread} has {what} open")
            if what.startswith("socket:") and _field(facts, "scm_fds") not in ("", "0"):
                raise CannotMove(f"thread {thread} has been sent files that it has not taken yet")
            if what.startswith("anon_inode:inotify"):
                raise CannotMove(f"thread {thread} watches files")


def _threads(process: int) -> list[int]:
    """Thread ids, the main thread first."""
    return sorted(map(int, os.listdir(f"/proc/{process}/task")))


def _field(path: str, name: str) -> str:
    """A field of a /proc file; empty if the kernel does not report it."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return next((line.split()[1] for line in file if line.startswith(f"{name}:")), "")


def _mappings(process: int) -> tuple[int, set[str]]:
    """Address of the vdso (the kernel's own page), and the files that are mapped shared."""
    vdso, shared = 0, set()
    with open(f"/proc/{process}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            words = line.rstrip("\n").split(maxsplit=5)
            if words[-1] == "[vdso]":
                vdso = int(words[0].partition("-")[0], 16)
            elif words[1].endswith("s") and words[-1].startswith("/"):
                shared.add(words[-1])
    return vdso, shared


def _require_no_named_socket() -> None:
    """A socket with a name in the file system is reachable through the old files only."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as sockets:
        for line in sockets:
            name = line.split(maxsplit=7)[7:]
            if name and not name[0].startswith("@") and name[0] != "Path\n":
                raise CannotMove(f"a socket is named {name[0].strip()}")
