"""Examines and ends the processes of a box from its pid 1: which command they belong to, what they use, and how to kill
all of them reliably.

Each command runs in its own UTS namespace, which serves as its mark: every descendant is in it and cannot leave it,
since commands may not make namespaces.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable

from etude.sandbox.inside import memory

_TICKS = os.sysconf("SC_CLK_TCK")
UNREADABLE = "?"
"""The mark of a process whose program file is unreadable: the kernel hides its UTS namespace."""
_UNREACHABLE = (FileNotFoundError, ProcessLookupError, PermissionError)
_MOST_WRITERS = 5
"""Maximum number of open files that `find_writers` names."""
_DEAD, _STOPPED = {b"Z", b"X"}, {b"T", b"t"}


class Usage:
    """Resource use of one process. `mark` identifies its command; `memory` is in bytes."""

    __slots__ = ("cpu_seconds", "mark", "memory")

    def __init__(self, mark: str, cpu_seconds: float, memory: int) -> None:
        self.mark, self.cpu_seconds, self.memory = mark, cpu_seconds, memory


_oom_score_fd = -1


def open_oom_score() -> None:
    """Open pid 1's oom_score_adj while pid 1 is still dumpable, since it cannot open the file afterwards."""
    global _oom_score_fd
    _oom_score_fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)


def prefer_for_oom_kill(offer: bool) -> None:
    """With `offer`, give processes started from now on the highest OOM score, else the normal one. Pid 1 makes the
    offer only while it starts a command. So when memory runs out, the kernel kills commands before pid 1. This holds
    even if pid 1 has a large answer in memory, and a command only unnamed files (memfd), which do not count as its own
    memory."""
    if _oom_score_fd >= 0:
        os.write(_oom_score_fd, b"1000" if offer else b"0")


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def threads_of(pid: int) -> list[int]:
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except _UNREACHABLE:
        return []


def _threads(pid: int) -> list[str]:
    """Return the /proc folders of the threads. A process whose main thread has ended looks like a zombie, but its other
    threads may still run."""
    return [f"/proc/{pid}/task/{number}" for number in threads_of(pid)]


def is_alive(pid: int, thread: int) -> bool:
    return _state(f"/proc/{pid}/task/{thread}") not in _DEAD


def is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def mark_of(pid: int) -> str:
    """Return the process's UTS namespace, which shows to which command it belongs; "" if it is dead."""
    return _mark_at(f"/proc/{pid}") or next(filter(None, map(_mark_at, _threads(pid))), "")


def _mark_at(folder: str) -> str:
    try:
        return os.readlink(f"{folder}/ns/uts")
    except PermissionError:
        # Newer kernels hide the mark of such a program even when the process is a zombie.
        return "" if _state(folder) in _DEAD else UNREADABLE
    except (FileNotFoundError, ProcessLookupError):
        return ""


def signal_all(number: signal.Signals) -> None:
    """Signal every process of the box but pid 1, in one system call, so that no forking process escapes."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def kill_marked(mark: str, commands: set[int]) -> None:
    """Kill all processes with this mark, and all whose mark cannot be read, except `commands`, the main processes of
    other commands.

    A process that is stopped in the middle of a fork still creates its child. So after the processes found are dead,
    the search is repeated until it finds none."""

    def to_kill(pid: int) -> bool:
        # A new command that has not reached its exec still runs pid 1's program, which hides the mark. It is in
        # `commands`, and no descendant of another command.
        return pid not in commands and mark_of(pid) in (mark, UNREADABLE)

    known: set[int] = set()
    while found := _stop_marked(to_kill, known):
        _kill_stopped(found, to_kill, {pid for pid in found if mark_of(pid) == mark})
        known |= found


def _stop_marked(to_kill: Callable[[int], bool], known: set[int]) -> set[int]:
    """Stop all processes that `to_kill` selects, except those in `known`, and return them. The search is repeated until
    it finds no more. Stopped processes cannot fork but still count towards the process limit, so even a fork bomb comes
    to an end."""
    stopped: set[int] = set()
    while found := {pid for pid in _others() if pid not in known | stopped and to_kill(pid)}:
        for pid in found:
            _send(pid, signal.SIGSTOP)
        stopped |= found
    return stopped


def _kill_stopped(stopped: set[int], to_kill: Callable[[int], bool], own: set[int]) -> None:
    """Kill those of the `stopped` processes for which `to_kill` still holds, and resume the others. `own` are those
    that certainly belong to the command being killed; wait briefly until they are reaped."""
    for pid in stopped:
        _send(pid, signal.SIGKILL if to_kill(pid) else signal.SIGCONT)
    _wait_for(lambda: not any(to_kill(pid) for pid in stopped))
    # A dead process that another command traces cannot be reaped yet.
    _wait_for(lambda: all(_reaped(pid) for pid in own), 0.2)


def _reaped(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # Its parent still lives. When the parent dies, it becomes our child.
        os.waitpid(pid, os.WNOHANG)
    return not is_there(pid)


def _wait_for(condition: Callable[[], bool], patience: float = 5.0) -> bool:
    """Poll until the condition holds, at most `patience` seconds. It is usually the effect of a signal, which comes
    soon unless a disk hangs."""
    deadline = time.monotonic() + patience
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.0003)
    return met


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap_orphans(commands: set[int]) -> None:
    for pid in _others():
        if pid not in commands:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def reap_all() -> None:
    """Wait a few seconds until every process has been reaped. Called after SIGKILL was sent to all."""

    def none_left() -> bool:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    _wait_for(none_left)


def wait_until_dead() -> None:
    """Wait a few seconds until no process runs. Commands that pid 1 still tracks may stay as zombies."""
    _wait_for(none_live)


def none_live() -> bool:
    return not living()


def none_exist() -> bool:
    """Whether the box has no process but pid 1, not even a dead one. Unlike `none_live`, which lists /proc, this cannot
    miss a process that is born while its parent ends: the kernel answers for one moment."""
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return True
    return False


def living() -> list[int]:
    return [pid for pid in _others() if mark_of(pid)]


def stop_all(stopped_before: set[int]) -> bool:
    """Stop all processes of the box but pid 1, and return whether all are stopped. A process stops at the end of its
    current system call; until then, that call may still change files.

    A parent in vfork stops only when its child has called exec. If the child is stopped before that, the parent never
    stops. So if some process does not stop, all are resumed until no parent waits in vfork, and then all are stopped
    again. The pids in `stopped_before` are not resumed: a signal had stopped them before pid 1 began to freeze the
    box."""
    for patience in (0.05, 0.1, 0.2, 0.4, 1.0):
        signal_all(signal.SIGSTOP)
        if _wait_for(lambda: all(_states(pid) <= _DEAD | _STOPPED for pid in _others()), patience):
            return True
        resume_all(stopped_before)
        _wait_for(lambda: not any(b"D" in _states(pid) for pid in _others()), patience)
    return False


def stopped() -> set[int]:
    return {pid for pid in _others() if _states(pid) - _DEAD == {b"T"}}


def resume_all(but: set[int]) -> None:
    if not but:
        signal_all(signal.SIGCONT)
        return
    for pid in _others():
        if pid not in but:
            _send(pid, signal.SIGCONT)


def reaped_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _states(pid: int) -> set[bytes]:
    return {_state(folder) for folder in _threads(pid)}


def _state(folder: str) -> bytes:
    """Return the state letter of a process or thread folder; X if it is gone."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0]
    except _UNREACHABLE:
        return b"X"


def measure(*, files: bool) -> list[Usage]:
    """Return the use of every process but pid 1. With `files`, include unnamed files (memfd) that processes hold
    open."""
    seen: set[int] = set()
    return [usage for pid in _others() if (usage := _measure_one(pid, seen if files else None)) is not None]


def _measure_one(pid: int, seen: set[int] | None) -> Usage | None:
    """Return the resource use of one process, or None if it has ended. Pages of program files do not count.

    Memory is the private pages plus the larger of two sizes: the shared-memory pages, and the unnamed files (memfd)
    that the process holds open. The two are not added up, because most such files are mapped, so their pages are among
    the shared-memory pages. The larger one is at least half of the true sum. Files in `seen` do not count again; with
    None, no files do."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = sum(int(value) for value in file.read().rpartition(b")")[2].split()[11:15])
        kib = _memory_at(f"/proc/{pid}") or next(filter(None, map(_memory_at, _threads(pid))), {})
    except _UNREACHABLE:
        return None
    own, shared = (int(kib.get(name, 0)) << 10 for name in (b"RssAnon:", b"RssShmem:"))
    memfds = memory.memfd_bytes(_threads(pid), seen) if seen is not None and kib else 0
    return Usage(mark_of(pid), ticks / _TICKS, own + max(shared, memfds))


def _memory_at(folder: str) -> dict[bytes, bytes]:
    """Return RssAnon and RssShmem (in KiB) of a /proc folder; empty for a thread that has ended."""
    with open(f"{folder}/status", "rb") as file:
        return dict(line.split()[:2] for line in file if line.startswith((b"RssAnon:", b"RssShmem:")))


def find_writers() -> list[str]:
    """Return "pid name: path" for files of the box that processes hold open for writing. After the first few, "others"
    stands for all the rest."""
    writers: dict[tuple[int, str], str] = {}
    for pid in _others():
        for folder in _threads(pid):
            with contextlib.suppress(*_UNREACHABLE):
                for number in os.listdir(f"{folder}/fd"):
                    path = os.readlink(f"{folder}/fd/{number}")
                    if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:")):
                        with open(f"{folder}/fdinfo/{number}") as info:
                            flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
                        if flags & os.O_ACCMODE != os.O_RDONLY and (pid, path) not in writers:
                            if len(writers) == _MOST_WRITERS:
                                return [*writers.values(), "others"]
                            # A process may give itself any bytes as its name.
                            with open(f"{folder}/comm", encoding="utf-8", errors="surrogateescape") as comm:
                                writers[pid, path] = f"{pid} {comm.read().strip()}: {path}"
    return [*writers.values()]
