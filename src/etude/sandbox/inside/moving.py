"""Living processes and a new root: who stands in a folder of the box's files is taken to the same folder of the new.

The kernel itself moves roots, and working folders that are the root; all others change their folder by a system call
that is made for them (tracing.py). Programs and private mappings of the old files stay, since sealed files keep their
content. What would tell old files from new ones cannot be moved, and the box is copied instead: open files and folders,
watches, sockets with a name among the files, mappings that show what others write, filters that could end who is moved.
"""

# Plain strings and descriptors instead of Path: as everywhere in `inside`.
# ruff: noqa: PTH115, PTH116, PTH123, PTH208

from __future__ import annotations

import os
from contextlib import suppress

from etude.sandbox.inside import kernel, processes, tracing


class Stays(Exception):
    """A process cannot be taken to another root without noticing; says which, and why."""


class Place:
    """A folder in which a thread stands."""

    __slots__ = ("link", "path", "thread", "vdso")

    def __init__(self, thread: int, path: str, vdso: int) -> None:
        self.thread, self.path, self.vdso = thread, path, vdso
        self.link = f"/proc/{thread}/cwd"

    def reached(self) -> bool:
        """Whether it stands where its path leads to now, or has ended."""
        try:
            stands = os.stat(self.link)
        except (FileNotFoundError, ProcessLookupError):
            return True
        try:
            return os.path.samestat(stands, os.stat(self.path))
        except OSError:
            return False

    def go(self) -> None:
        tracing.change_folder(self.thread, self.path, self.vdso)


def rehearse() -> tuple[list[Place], list[str]]:
    """The places that a new root would leave behind, and the files that are mapped for all to see: those of the box's
    image may be, those that it has written may not.

    All threads stand still. Every process has then gone to the place where it was, so that it can go there again."""
    if not tracing.KNOWN:
        raise Stays(f"the registers of {kernel.MACHINE} are not known")
    places: list[Place] = []
    shared: set[str] = set()
    try:
        _require_no_named_socket()
        view = _View()
        for process in processes.living():
            vdso, mapped = _mappings(process)
            shared |= mapped
            found = [place for thread in _threads(process) if (place := view.place_of(thread, vdso))]
            for place in found[:1]:  # Threads share it; where one does not, it is taken there when all are.
                place.go()
            places += found
    except OSError as error:
        raise Stays(f"{error.filename or 'a process'}: {error.strerror}") from error
    return places, sorted(shared)


def follow(places: list[Place]) -> None:
    """Takes all to the root that the box has now."""
    for place in places:
        with suppress(OSError):
            if not place.reached():
                place.go()
        if not place.reached():
            raise Stays(f"thread {place.thread} was left behind in {place.path}")


class _View:
    """Threads as seen from a box's root."""

    def __init__(self) -> None:
        self._device = os.stat("/").st_dev
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            self._mount = _field(f"/proc/self/fdinfo/{root}", "mnt_id")
        finally:
            os.close(root)
        self._filters = _field("/proc/self/status", "Seccomp_filters")

    def place_of(self, thread: int, vdso: int) -> Place | None:
        """None for one that stands elsewhere, as in /proc, or where the kernel moves it; Stays where it holds files."""
        if _field(f"/proc/{thread}/status", "Seccomp_filters") != self._filters:
            raise Stays(f"thread {thread} has filters of its own for system calls")
        self._require_nothing_open(thread)
        info = os.stat(f"/proc/{thread}/cwd")
        if info.st_dev != self._device or os.path.samestat(info, os.stat("/")):
            return None
        place = Place(thread, os.readlink(f"/proc/{thread}/cwd"), vdso)
        if not place.reached():
            raise Stays(f"thread {thread} stands in a folder that is gone: {place.path}")
        return place

    def _require_nothing_open(self, thread: int) -> None:
        for number in os.listdir(f"/proc/{thread}/fd"):
            what, facts = os.readlink(f"/proc/{thread}/fd/{number}"), f"/proc/{thread}/fdinfo/{number}"
            if what.startswith("/") and _field(facts, "mnt_id") == self._mount:
                raise Stays(f"thread {thread} has {what} open")
            if what.startswith("socket:") and _field(facts, "scm_fds") not in ("", "0"):
                raise Stays(f"thread {thread} has been sent files that it has not taken yet")
            if what.startswith("anon_inode:inotify"):
                raise Stays(f"thread {thread} watches files")


def _threads(process: int) -> list[int]:
    """The first one first."""
    return sorted(map(int, os.listdir(f"/proc/{process}/task")))


def _field(path: str, name: str) -> str:
    """Empty where the kernel says nothing about it."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return next((line.split()[1] for line in file if line.startswith(f"{name}:")), "")


def _mappings(process: int) -> tuple[int, set[str]]:
    """Where the kernel's own page lies, and the files mapped for all to see."""
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
    """Its name leads to it through the old files alone."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as sockets:
        for line in sockets:
            name = line.split(maxsplit=7)[7:]
            if name and not name[0].startswith("@") and name[0] != "Path\n":
                raise Stays(f"a socket is named {name[0].strip()}")
