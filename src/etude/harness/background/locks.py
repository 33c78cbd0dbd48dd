"""File locks that show which process is alive or writing. The kernel releases them however a process ends.

Invariant: checking whether a lock is held never takes it, so a check cannot make anyone else fail. The locks belong to
the open file, not to the process: a process can hand a held lock to a child without a gap.
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


def take(path: Path) -> int | None:
    """Take the lock. Return a descriptor that holds it until closed; None if another holder has it."""
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
    """Write into the lock file that this process now holds its lock."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {_started(os.getpid())}".encode(), 0)


def holder(path: Path) -> int | None:
    """The process that signed last. It may no longer hold the lock."""
    number, _, _ = path.read_text().partition(" ")
    return int(number) if number else None


def signal_holder(path: Path, number: int) -> bool:
    """Send a signal to the lock's holder. Return False if nobody holds the lock or the holder has not signed yet. A
    reused process number is recognised by its start time, and the pidfd then refers to that one process."""
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
    """Its start time, in ticks since boot. Parsed from the right: the name before it may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@contextmanager
def alone(path: Path, *, seconds: float, whom: str) -> Iterator[None]:
    """Wait for the lock and hold it. After `seconds`, raises a SessionError that names `whom` it waited for."""
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
