"""Who is alive and who writes, told by locks that the kernel releases when their process ends, however it ends.

Invariant: asking whether a lock is held never takes it, so nobody is refused because of a question. The locks belong to
the open file, not to the process: who starts another process can hand a held lock on to it, with no moment between.
"""

from __future__ import annotations

import fcntl
import os
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
