"""The processes of a box as pid 1 sees them: whom they belong to, what they use, and their certain end.

A command's mark is its own UTS namespace: every descendant is in it, and none can leave it (new namespaces are denied).
"""

# Plain strings and descriptors instead of Path: this runs for every command of every box.
# ruff: noqa: PTH110, PTH115, PTH123, PTH208

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
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_DEAD, _STOPPED = {b"Z", b"X"}, {b"T", b"t"}


class Usage:
    """Of one process."""

    __slots__ = ("cpu_seconds", "mark", "memory")

    def __init__(self, mark: str, cpu_seconds: float, memory: int) -> None:
        self.mark, self.cpu_seconds, self.memory = mark, cpu_seconds, memory


_own_score = -1


def open_own_score() -> None:
    """Pid 1 keeps this open: once its memory is closed to others, so is the file."""
    global _own_score
    _own_score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)


def offer_next_to_the_killer(offer: bool) -> None:
    """What pid 1 starts now ends before pid 1 itself when memory runs out; desktop programs have that value."""
    if _own_score >= 0:
        os.write(_own_score, b"200" if offer else b"0")


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def _threads(pid: int) -> list[str]:
    """Where /proc shows them. A process goes on when its first one has ended, and looks like a zombie then."""
    try:
        return [f"/proc/{pid}/task/{number}" for number in os.listdir(f"/proc/{pid}/task")]
    except _GONE:
        return []


def mark_of(pid: int) -> str:
    """Empty for a process that is gone or a zombie; UNREADABLE for one that hides (it runs an unreadable program)."""
    return _mark_at(f"/proc/{pid}") or next(filter(None, map(_mark_at, _threads(pid))), "")


def _mark_at(place: str) -> str:
    try:
        return os.readlink(f"{place}/ns/uts")
    except PermissionError:
        # Newer kernels keep the marks of such a program closed even when it has become a zombie.
        return "" if _state(place) in _DEAD else UNREADABLE
    except (FileNotFoundError, ProcessLookupError):
        return ""


def signal_all(number: signal.Signals) -> None:
    """Every process of the box but pid 1, in one step of the kernel: no fork escapes it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


def kill_marked(mark: str, commands: set[int]) -> None:
    """Ends a command's tree while the other `commands` run on. Who hides its mark is ended too.

    A process that is told to stop in the middle of a fork still makes its child: so all are looked for once more when
    those that were found are dead."""

    def doomed(pid: int) -> bool:
        # A command that has not yet left pid 1's program hides its mark; it is no descendant of another.
        return pid not in commands and mark_of(pid) in (mark, UNREADABLE)

    known: set[int] = set()
    while found := _brought_to_rest(doomed, known):
        _end(found, doomed, {pid for pid in found if mark_of(pid) == mark})
        known |= found


def _brought_to_rest(doomed: Callable[[int], bool], known: set[int]) -> set[int]:
    """Stops all but the `known`, before any is ended: stopped processes fill the process limit and cannot fork, so even
    a fork bomb comes to rest."""
    stopped: set[int] = set()
    while fresh := {pid for pid in _others() if pid not in known | stopped and doomed(pid)}:
        for pid in fresh:
            _send(pid, signal.SIGSTOP)
        stopped |= fresh
    return stopped


def _end(stopped: set[int], doomed: Callable[[int], bool], own: set[int]) -> None:
    for pid in stopped:
        _send(pid, signal.SIGKILL if doomed(pid) else signal.SIGCONT)
    _wait_for(lambda: not any(doomed(pid) for pid in stopped))
    # A dead one that another command traces is collected later.
    _wait_for(lambda: all(_collected(pid) for pid in own), 0.2)


def _collected(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # Its parent is just dying: then it is ours.
        os.waitpid(pid, os.WNOHANG)
    return not os.path.exists(f"/proc/{pid}")


def _wait_for(condition: Callable[[], bool], patience: float = 5.0) -> bool:
    """Signals take effect soon, unless a disk hangs."""
    deadline = time.monotonic() + patience
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.0003)
    return met


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def collect_orphans(commands: set[int]) -> None:
    """Collects the dead that no command will collect."""
    for pid in _others():
        if pid not in commands:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def collect_all() -> None:
    """After SIGKILL to all: waits until every process has been collected."""

    def none_left() -> bool:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    _wait_for(none_left)


def wait_until_dead() -> None:
    """After SIGKILL to all: waits until none runs; running commands collect their own zombies."""
    _wait_for(none_live)


def none_live() -> bool:
    return not living()


def living() -> list[int]:
    return [pid for pid in _others() if mark_of(pid)]


def stop_all(resting: set[int]) -> bool:
    """Whether all stand still: a process stops at the end of its present system call, which may still change files.

    One that waits for a child to start its program (vfork) does not stop before the child, stopped on its way, goes on;
    so all are let go until nobody waits like that, and stopped once more."""
    for patience in (0.05, 0.1, 0.2, 0.4, 1.0):
        signal_all(signal.SIGSTOP)
        if _wait_for(lambda: all(_states(pid) <= _DEAD | _STOPPED for pid in _others()), patience):
            return True
        wake_all(resting)
        _wait_for(lambda: not any(b"D" in _states(pid) for pid in _others()), patience)
    return False


def stopped() -> set[int]:
    return {pid for pid in _others() if _states(pid) - _DEAD == {b"T"}}


def wake_all(but: set[int]) -> None:
    """After a freeze; who stood still before it stays so."""
    if not but:
        signal_all(signal.SIGCONT)
        return
    for pid in _others():
        if pid not in but:
            _send(pid, signal.SIGCONT)


def collected_cpu_seconds() -> float:
    """Of all that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _states(pid: int) -> set[bytes]:
    """Of all its threads: each stops for itself."""
    return {_state(place) for place in _threads(pid)}


def _state(place: str) -> bytes:
    try:
        with open(f"{place}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0]
    except _GONE:
        return b"X"


def measure(*, files: bool) -> list[Usage]:
    """`files`: with the memory of files that a process holds open and that are nowhere else."""
    seen: set[int] = set()
    return [usage for pid in _others() if (usage := _measure_one(pid, seen if files else None)) is not None]


def _measure_one(pid: int, seen: set[int] | None) -> Usage | None:
    """Memory is what the process has for itself or shares by memory; pages of program files are not counted. What it
    holds open is mostly what it shares, too, so the larger of both counts: at least half of the truth, never twice."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = sum(int(value) for value in file.read().rpartition(b")")[2].split()[11:15])
        kib = _memory_at(f"/proc/{pid}") or next(filter(None, map(_memory_at, _threads(pid))), {})
    except _GONE:
        return None
    own, shared = (int(kib.get(name, 0)) << 10 for name in (b"RssAnon:", b"RssShmem:"))
    held = memory.held_open(_threads(pid), seen) if seen is not None and kib else 0
    return Usage(mark_of(pid), ticks / _TICKS, own + max(shared, held))


def _memory_at(place: str) -> dict[bytes, bytes]:
    """Empty for a thread that has ended."""
    with open(f"{place}/status", "rb") as file:
        return dict(line.split()[:2] for line in file if line.startswith((b"RssAnon:", b"RssShmem:")))


def find_writers() -> list[str]:
    """Processes that hold a regular file of the box open for writing, as "pid name: path"."""
    writers = {}
    for pid in _others():
        for place in _threads(pid):
            with contextlib.suppress(*_GONE):
                for number in os.listdir(f"{place}/fd"):
                    path = os.readlink(f"{place}/fd/{number}")
                    if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:")):
                        with open(f"{place}/fdinfo/{number}") as info:
                            flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
                        if flags & os.O_ACCMODE != os.O_RDONLY:
                            with open(f"{place}/comm") as comm:
                                writers[pid, path] = f"{pid} {comm.read().strip()}: {path}"
    return [*writers.values()]
