"""Attack programs that use up one of the kernel's tables (timers, pipes, file locks...), or check that some is left.

`python -c <this file> {} take <table>`: takes as many entries as it gets, prints "HELD n" and sleeps.
`... probe <table> box|host`: tries to get two entries. It prints BREACH if it gets none or less than it should, or if
it runs in a box and gets entries of a table that is denied to boxes.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
_PIPE_SIZE, _GET_PIPE_SIZE = 1031, 1032
_SO_ATTACH_FILTER = 26
kept: list[object] = []
in_one_message = 200


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def inotify() -> None:
    kept.append(_checked(libc.inotify_init1(0), "inotify_init1"))


def watches() -> None:
    if not kept:
        inotify()
        os.makedirs("watched", exist_ok=True)
    path = f"watched/{os.getpid()}-{len(kept)}"
    with open(path, "w"):
        pass
    kept.append(_checked(libc.inotify_add_watch(kept[0], path.encode(), 2), "inotify_add_watch"))


def pipes() -> None:
    ends = os.pipe()
    kept.append(ends)
    fcntl.fcntl(ends[1], _PIPE_SIZE, 1 << 20)


def in_flight() -> None:
    """Send descriptors through a socket and never receive them: the kernel keeps them in flight."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    kept.append(pair)
    null = os.open("/dev/null", os.O_RDONLY)
    rights = array.array("i", [null] * in_one_message)
    for _ in range(4):
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(null)


def timers() -> None:
    """Create a POSIX timer. The kernel counts it among the queued signals of its user."""
    timer = ctypes.c_void_p()
    _checked(libc.timer_create(1, None, ctypes.byref(timer)), "timer_create")
    kept.append(timer)


def epoll() -> None:
    if not kept:
        kept.extend([libc.epoll_create1(0), os.pipe()])
    number = os.dup(kept[1][0])  # type: ignore[index]
    event = (ctypes.c_uint32 * 3)(1, number, 0)
    kept.append(number)
    _checked(libc.epoll_ctl(kept[0], 1, number, ctypes.byref(event)), "epoll_ctl")


def message_queues() -> None:
    # Before version 2.34, the GNU C library has them in a library of their own.
    library = libc if hasattr(libc, "mq_open") else ctypes.CDLL("librt.so.1", use_errno=True)
    attributes = (ctypes.c_long * 8)(0, 10, 8192)
    name = f"/etude-{os.getpid()}-{len(kept)}".encode()
    kept.append(_checked(library.mq_open(name, 0o102, 0o600, attributes), "mq_open"))
    library.mq_unlink(name)


def segments() -> None:
    """Create a System V shared memory segment of one page, which lasts until it is removed."""
    kept.append(_checked(libc.shmget(0, 4096, 0o1600), "shmget"))


def asynchronous_requests() -> None:
    context = ctypes.c_ulong()
    io_setup = {"x86_64": 206, "aarch64": 0}[os.uname().machine]
    _checked(libc.syscall(io_setup, 4000, ctypes.byref(context)), "io_setup")
    kept.append(context)


def socket_filters() -> None:
    """Attach a filter to a new socket. The kernel has one small memory for the filter code of all users."""
    each = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    code = struct.pack("=HBBI", 0x20, 0, 0, 0) * 100 + struct.pack("=HBBI", 6, 0, 0, 0)
    buffer = ctypes.create_string_buffer(code)
    each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 101, ctypes.addressof(buffer)))
    kept.append(each)


def locks() -> None:
    """Lock one more byte of a file."""
    if not kept:
        kept.append(os.open(f"locked-{os.getpid()}", os.O_RDWR | os.O_CREAT))
    fcntl.lockf(kept[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * len(kept))  # type: ignore[arg-type]
    kept.append(None)


def terminals() -> None:
    kept.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))


def locked_memory() -> None:
    import mmap

    page = mmap.mmap(-1, 1 << 16)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _checked(libc.mlock(ctypes.c_void_p(address), 1 << 14), "mlock")
    kept.append(page)


def call_filters() -> None:
    """Install seven of the longest filters of system calls (seccomp) in a new thread. A descriptor keeps them alive when
    that thread has ended."""
    seccomp, no_new_privs = {"x86_64": 317, "aarch64": 277}[os.uname().machine], 38
    listener, longest = 8, 4096
    steps = ctypes.create_string_buffer((b"\x15" + bytes(7)) * (longest - 1) + b"\x06\0\0\0\0\0\xff\x7f")
    program = struct.pack("@HP", longest, ctypes.addressof(steps))
    problems: list[OSError] = []

    def install() -> None:
        try:
            for flags in (*[0] * 6, listener):
                kept.append(_checked(libc.syscall(seccomp, 1, flags, program), "seccomp"))
        except OSError as error:
            problems.append(error)

    libc.prctl(no_new_privs, 1, 0, 0, 0)
    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


TABLES: dict[str, tuple[Callable[[], None], int]] = {
    "inotify": (inotify, 1000),
    "watches": (watches, 20_000),
    "pipes": (pipes, 480),
    "in_flight": (in_flight, 30),
    "timers": (timers, 100_000),
    "epoll": (epoll, 900),
    "message_queues": (message_queues, 900),
    "segments": (segments, 40_000),
    "asynchronous_requests": (asynchronous_requests, 1000),
    "socket_filters": (socket_filters, 100),
    "locks": (locks, 3000),
    "terminals": (terminals, 900),
    "locked_memory": (locked_memory, 100),
    "call_filters": (call_filters, 400),
}
"""For each table, the function that takes one more entry, and how many times a process calls it at most."""
DENIED = {"asynchronous_requests": errno.ENOSYS, "socket_filters": errno.EPERM, "call_filters": errno.ENOSYS}
"""Tables of which boxes get no entry at all, each with the errno of the refused call."""


def take(table: str) -> None:
    one, most = TABLES[table]
    taken, why = 0, "enough"
    for _ in range(most):
        try:
            one()
        except OSError as error:
            why = str(error)
            break
        taken += 1
    print("HELD", taken, why, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(120)


def probe(table: str, where: str) -> None:
    global in_one_message
    in_one_message = 10  # A process may have 1,024 in flight by itself.
    one, _ = TABLES[table]
    try:
        for _ in range(2):
            one()
    except OSError as error:
        if error.errno != DENIED.get(table):
            print("BREACH", table, error)
        return
    finally:
        for number in kept if table == "segments" else ():
            libc.shmctl(number, 0, None)
    if where == "box" and table in DENIED:
        print("BREACH a box gets", table)
    if table == "pipes":
        fresh = os.pipe()
        if (size := fcntl.fcntl(fresh[1], _GET_PIPE_SIZE)) < 1 << 16:
            print("BREACH a new pipe holds", size, "bytes")


def main(calls: str, name: str, *words: str) -> None:
    globals()[name](*words)
    print("DONE")


if __name__ == "__main__":
    main(*sys.argv[1:])
