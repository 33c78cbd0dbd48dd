"""One command of a box. Pid 1 watches its resource use, and kills the whole process tree when the command ends. Each
command runs in a UTS namespace of its own (its mark), by which pid 1 recognizes the command's descendants."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable

from etude.sandbox.inside import kernel
from etude.sandbox.inside.events import Events
from etude.sandbox.inside.spawn import CannotStart, Launch, Spawner
from etude.sandbox.inside.wire import Header

Send = Callable[[Header, bytes], None]
PIPE_BYTES = 1 << 20
CHUNK = 1 << 16
_PAUSE = 0.001
"""Seconds between two reads of an output that is always full. Pid 1 would else be busy with it all the time."""


class Command:
    def __init__(self, number: int, launch: Launch, events: Events, send: Send) -> None:
        self.number, self.events, self.send = number, events, send
        self.began = time.monotonic()
        self.deadline = self.began + launch.timeout
        self.check_at = min(self.deadline, self.began + 0.05)
        self.cpu_in_time_until = self.began
        """Before this time, the command cannot have used up its CPU seconds, on however many CPUs it runs."""
        self.limit = ""
        self.pid = self.pidfd = -1
        # The mark is a UTS namespace. Pid 1 enters it first, so the command is in it from its first instruction. The
        # open file keeps the kernel from giving the same namespace number to a later command before this one is
        # answered.
        kernel.unshare(kernel.CLONE_NEWUTS, "mark")
        self.mark_fd = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        self.mark = f"uts:[{os.fstat(self.mark_fd).st_ino}]"

    def begin(self, spawner: Spawner, launch: Launch, streams: tuple[int | None, int, int] | str) -> None:
        self.pid = spawner.spawn(launch, streams)
        self.pidfd = os.pidfd_open(self.pid)

    # -- its output

    def take_output(self, number: int) -> None:
        """Read the output that is available, at most PIPE_BYTES; if there is more, go on after a pause. At the end of
        the stream, stop watching the descriptor `number`."""
        for _ in range(PIPE_BYTES // CHUNK):  # Bounded: endless output must not delay pid 1's deadlines.
            try:
                data = os.read(number, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.events.forget(number)
                return
            self.add_output(number, data)
            if len(data) < CHUNK:
                return
        self.events.pause_reading(number, _PAUSE)

    def take_rest(self, number: int) -> None:
        """Read the remaining output and close the descriptor. At most PIPE_BYTES are read, since a process of another
        command may still have the other end open and write to it forever."""
        self.events.forget(number)
        for _ in range(PIPE_BYTES // CHUNK):
            try:
                data = os.read(number, CHUNK)
            except OSError:  # Nothing is there, or no program has the terminal open any more.
                break
            if not data:
                break
            self.add_output(number, data)
        os.close(number)

    def add_output(self, number: int, data: bytes) -> None:
        raise NotImplementedError

    # -- its end

    def seconds_to_check(self) -> float:
        return self.check_at - time.monotonic()

    def schedule_check(self, pause: float) -> None:
        """Set the next check of resource use, at least `pause` seconds from now. A check walks /proc, so it is rarer
        (up to a quarter of a second) for a command that has run for long. It comes at the deadline at the latest,
        unless the command is being killed already."""
        now = time.monotonic()
        pause = max(pause, min(0.25, (now - self.began) / 10))
        self.check_at = now + pause if self.limit else min(self.deadline, now + pause)

    def expired(self) -> bool:
        return time.monotonic() >= self.deadline

    def kill(self, limit: str) -> None:
        """Kill the main process. Pid 1 kills its descendants once it has reaped it. `limit` is the reason to report,
        such as "time"."""
        self.limit = self.limit or limit
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.events.forget(self.pidfd)
        os.close(self.pidfd)
        return status

    def finish(self, status: int) -> None:
        """Answer the command's request. Called when all processes of the command have ended."""
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        # The kernel may send the signal of a limit before our own check sees the excess. A shell reports the signal
        # that ended its program as 128 + number, too.
        self.limit = self.limit or {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file"}.get(code, "")
        self.release()
        self.answer(code)

    def fail(self, reason: CannotStart) -> None:
        self.add_error(str(reason).encode("utf-8", "surrogateescape"))
        self.release()
        self.answer(reason.code)

    def add_error(self, line: bytes) -> None:
        raise NotImplementedError

    def answer(self, code: int) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Read what is left in the command's streams and close its descriptors."""
        os.close(self.mark_fd)


def wide_pipe() -> tuple[int, int]:
    """Make a pipe whose read end never blocks, of PIPE_BYTES if the kernel allows that size. Return (read end, write
    end)."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing
