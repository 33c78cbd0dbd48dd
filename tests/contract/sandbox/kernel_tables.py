"""What neighbours.py sends into boxes: `python -c <this file> take <table> <processes>` takes all of a kernel table
that so many processes can get, and holds it; `python -c <this file> need <table>` says whether there is some left.

Uses the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
import time
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
ARM = os.uname().machine == "aarch64"
SET_PIPE_SIZE, GET_PIPE_SIZE, DEFAULT_PIPE = 1031, 1032, 65536
SO_ATTACH_FILTER = 26
IO_SETUP = 0 if ARM else 206
kept: list[Any] = []
"""Keeps alive what has been taken."""


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class QueueAttributes(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_long),
        ("messages", ctypes.c_long),
        ("size", ctypes.c_long),
        ("waiting", ctypes.c_long * 5),
    ]


def watchers() -> None:
    kept.append(checked(libc.inotify_init1(0)))


def pipes() -> None:
    kept.append(os.pipe())
    fcntl.fcntl(kept[-1][1], SET_PIPE_SIZE, 1 << 20)


def need_pipes() -> None:
    reading, _ = os.pipe()
    if (size := fcntl.fcntl(reading, GET_PIPE_SIZE)) < DEFAULT_PIPE:
        raise OSError(errno.ENOSPC, f"a new pipe has {size} bytes")


def descriptors_in_flight() -> None:
    kept.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    socket.send_fds(kept[-1][0], [b"x"], [0] * 200)


def queues() -> None:
    attributes = QueueAttributes(0, 10, 8192)
    name = f"/{os.getpid()}-{len(kept)}".encode()
    kept.append(checked(libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(attributes))))
    checked(libc.mq_unlink(name))  # It lasts as long as it is open.


def timers() -> None:
    kept.append(ctypes.c_void_p())
    checked(libc.timer_create(1, None, ctypes.byref(kept[-1])))


def terminals() -> None:
    kept.append(os.openpty())


def asynchronous_requests() -> None:
    kept.append(ctypes.c_ulong(0))
    checked(libc.syscall(IO_SETUP, 4096, ctypes.byref(kept[-1])))


def compiled_filters() -> None:
    """At most 100, so that where a box can have them nobody else is stopped."""
    if len(kept) == 100:
        raise OSError(errno.E2BIG, "filters are compiled")
    kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    program = struct.pack("=HBBI", 0x20, 0, 0, 0) * 100 + struct.pack("=HBBI", 6, 0, 0, 0)
    buffer = ctypes.create_string_buffer(program)
    kept[-1].setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", 101, ctypes.addressof(buffer)))


def no_call(table: str) -> None:
    """Boxes cannot have any of these tables, so they cannot take any from each other either."""
    try:
        globals()[table]()
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise


def need_asynchronous_requests() -> None:
    no_call("asynchronous_requests")


def need_compiled_filters() -> None:
    no_call("compiled_filters")


def segments() -> None:
    kept.append(checked(libc.shmget(0, 4096, 0o1600)))
    if sys.argv[1] == "need":
        libc.shmctl(kept[-1], 0, None)  # Remove it: it would outlive this process.


def take(table: str, processes: int) -> None:
    total = 0
    for _ in range(processes):
        reading, writing = os.pipe()
        if os.fork() == 0:
            count, why = 0, "no end"
            try:
                for count in range(200_000):  # noqa: B007
                    globals()[table]()
            except OSError as error:
                why = errno.errorcode[error.errno or 0]
            os.write(writing, f"{count} {why}".encode())
            time.sleep(60)
            os._exit(0)
        os.close(writing)
        count_text, why = os.read(reading, 100).decode().split(" ", 1)
        total += int(count_text)
        os.close(reading)
    print("took", total, why, flush=True)
    time.sleep(60)


def need(table: str) -> None:
    try:
        globals().get(f"need_{table}", globals()[table])()
        print("left")
    except OSError as error:
        print("none:", error)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(sys.argv[2], int(sys.argv[3]))
    else:
        need(sys.argv[2])
