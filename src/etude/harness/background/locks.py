"""File locks that show whether a process is alive or writing. The kernel releases a lock however its process ends.

Invariant: checking whether a lock is held never takes it, so a check cannot make another process fail. A lock belongs
to the open file, not to the process, so a child process can inherit it without a moment in which the lock is free.
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
"""Layout of Linux's struct flock on 64-bit machines: type, whence, start, length (0: the whole file), process."""
_WHOLE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_LOOK_SECONDS = 0.05


def take_lock(path: Path) -> int | None:
    """Take the lock on a file. Return a descriptor that holds it until closed, or None if the lock is already held."""
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


def sign_lock(descriptor: int) -> None:
    """Write this process's id and start time into the lock file, as its holder."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {_started(os.getpid())}".encode(), 0)


def lock_holder(path: Path) -> int | None:
    """Return the process id that `sign_lock` last wrote into the lock file; None if the file is empty. That process may
    have released the lock since."""
    number, _, _ = path.read_text().partition(" ")
    return int(number) if number else None


def signal_holder(path: Path, number: int) -> bool:
    """Send the signal `number` to the process that holds the lock.

    Return False, without a signal, if nobody holds the lock, if the holder has not called `sign_lock` yet, or if the
    process id in the file now belongs to another process, which has another start time. A pidfd ensures that the signal
    reaches the process that was checked.
    """
    pid = lock_holder(path)
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
    """Return a process's start time in clock ticks since boot. In /proc/PID/stat the times are read from behind the
    last ")", since the process name before it may contain any characters."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@contextmanager
def wait_for_lock(path: Path, *, seconds: float, whom: str) -> Iterator[None]:
    """Context manager that waits for the lock and holds it. Raises SessionError after `seconds`; `whom` describes the
    holder in the error message."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + seconds
    while (descriptor := take_lock(path)) is None:
        if time.monotonic() > deadline:
            raise SessionError(f"waited {seconds:g} s for {whom}, which holds {path}; try again when it is done")
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)
