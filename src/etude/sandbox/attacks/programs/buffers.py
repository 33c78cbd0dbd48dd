"""Programs that keep data where no process has it: in buffers of sockets and pipes.

`python -c <this file> {} <kind> <MiB>` prints BREACH if buffers of this kind hold that much at once, then frees them.
The kinds are the functions tcp, udp, unix_streams, unix_datagrams and pipes; {} is unused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import sys

_BLOCK = b"x" * (1 << 16)
_PIPE_SIZE = 1031


def _widen(each: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, option, 1 << 24)


def _fill(end: socket.socket) -> int:
    """Write to a socket until its buffers are full. Return the number of bytes written."""
    held = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            held += end.send(_BLOCK, socket.MSG_DONTWAIT)
    return held


def tcp(most: int) -> int:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4000)
    held, kept = 0, [listener]
    while held < most:
        end = socket.create_connection(listener.getsockname())
        kept.append(end)
        if len(kept) % 2:
            _widen(end)
        held += _fill(end)
    return held


def udp(most: int) -> int:
    held, kept = 0, []
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _widen(sender)
    while held < most:
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        _widen(end)
        end.bind(("127.0.0.1", 0))
        kept.append(end)
        before, size = held, 32_000
        for _ in range(200):
            sender.sendto(_BLOCK[:size], socket.MSG_DONTWAIT, end.getsockname())
        with contextlib.suppress(BlockingIOError):
            # Count what has been kept, without taking it: a datagram more than fits is dropped in silence.
            held += size * (_queued(end.getsockname()[1]) // (size + 768))
        if held == before:
            break
    return held


def _queued(port: int) -> int:
    """Return the bytes that wait in the receive queue of the UDP socket at this port, including what the kernel adds to
    each datagram."""
    with open("/proc/net/udp") as table:
        for line in table.readlines()[1:]:
            words = line.split()
            if int(words[1].partition(":")[2], 16) == port:
                return int(words[4].partition(":")[2], 16)
    return 0


def _pairs(kind: socket.SocketKind, most: int) -> int:
    held, kept = 0, []
    while held < most:
        pair = socket.socketpair(socket.AF_UNIX, kind)
        kept.append(pair)
        for end in pair:
            _widen(end)
        fits = sum(map(_fill, pair))
        held += fits
        if not fits:
            break
    return held


def unix_streams(most: int) -> int:
    return _pairs(socket.SOCK_STREAM, most)


def unix_datagrams(most: int) -> int:
    return _pairs(socket.SOCK_DGRAM, most)


def pipes(most: int) -> int:
    held, kept = 0, []
    while held < most:
        ends = os.pipe()
        kept.append(ends)
        os.set_blocking(ends[1], False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends[1], _PIPE_SIZE, 1 << 20)
        with contextlib.suppress(BlockingIOError):
            while True:
                held += os.write(ends[1], _BLOCK)
    return held


def main(calls: str, kind: str, most: str) -> None:
    wanted = int(most) << 20
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = 0
    try:
        held = globals()[kind](wanted)
    except (OSError, MemoryError) as error:
        print("stopped by", error)
    if held >= wanted:
        print("BREACH", kind, held >> 20, "MiB")
    print("DONE")


if __name__ == "__main__":
    main(*sys.argv[1:])
