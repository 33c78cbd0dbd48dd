"""Who is alive and who writes, told by locks that the kernel releases when their process ends, however it ends.

Invariant: asking whether a lock is held never takes it, so nobody is refused because of a question. The locks belong to
the open file, not to the process: who starts another process can hand a held lock on to it, with no moment between.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.harness.sessions import SessionError

_FLOCK = "hhqqi4x"
"""Linux's struct flock on 64-bit machines: type, whence, start, length (0: all of it), process."""
_WHOLE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_LOOK_SECONDS = 0.05


def take(path: Path) -> int | None:
    """The descriptor that holds the lock until it is closed; None if somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE)
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE))
    finally:
        os.close(descriptor)
    return bool(found[0] != fcntl.F_UNLCK)


def sign(descriptor: int) -> None:
    """Says in the file who holds its lock from here on: this process."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {_started(os.getpid())}".encode(), 0)


def holder(path: Path) -> int | None:
    """The process that signed last; whether it still holds the lock is not said."""
    number, _, _ = path.read_text().partition(" ")
    return int(number) if number else None


def signal_holder(path: Path, number: int) -> bool:
    """False if nobody holds the lock, or its holder has not signed yet. A process that has the number of one that is
    gone began at another time; and from that look on the handle is of that process alone."""
    pid = holder(path)
    if pid is None or not is_held(path):
        return False
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if path.read_text() != f"{pid} {_started(pid)}":
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, FileNotFoundError):
        return False
    finally:
        os.close(handle)
    return True


def _started(pid: int) -> str:
    """In ticks since the machine started; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@contextmanager
def alone(path: Path, *, seconds: float, whom: str) -> Iterator[None]:
    """Waits until nobody else holds the lock; SessionError names `whom` it has waited for."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + seconds
    while (descriptor := take(path)) is None:
        if time.monotonic() > deadline:
            raise SessionError(f"waited {seconds:g} s for {whom}, which holds {path}; try again when it is done")
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)
