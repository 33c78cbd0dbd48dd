"""One command: it runs with a mark that its descendants cannot shed, is watched, and ends as a whole process tree."""

# Plain strings and descriptors instead of Path, since this runs for every command of every box.

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

from etude.sandbox.inside import kernel
from etude.sandbox.inside.events import Events
from etude.sandbox.inside.spawn import CannotStart, Launch, Spawner

PIPE_BYTES = 1 << 20
CHUNK = 1 << 16


class Command:
    """What foreground commands (foreground.py) and background commands (background.py) have in common."""

    def __init__(self, number: int, launch: Launch, events: Events) -> None:
        self.number, self.events = number, events
        self.began = time.monotonic()
        self.deadline = self.began + launch.timeout
        self.check_at = min(self.deadline, self.began + 0.05)
        self.limit = ""
        self.pid = self.pidfd = -1
        # Pid 1 enters the new namespace first, so the command is in it from its first instruction. The open file keeps
        # the kernel from giving this mark to a later command before this one is answered.
        kernel.unshare(kernel.CLONE_NEWUTS, "mark")
        self.mark_fd = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        self.mark = f"uts:[{os.fstat(self.mark_fd).st_ino}]"

    def begin(self, spawner: Spawner, launch: Launch, streams: tuple[int | None, int, int] | str) -> None:
        self.pid = spawner.spawn(launch, streams)
        self.pidfd = os.pidfd_open(self.pid)

    # -- its output

    def take_output(self, number: int) -> None:
        """Reads the output that is available; at the end of the stream, stops listening."""
        for _ in range(16):  # Bounded: a flood of output must not keep pid 1 from its deadlines.
            try:
                data = os.read(number, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.events.forget(number)
                return
            self.add_output(number, data)

    def take_rest(self, number: int) -> None:
        """Reads the rest and closes the stream. Bounded: another command's process may write to it forever."""
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
        """Called with output that was read from this descriptor."""
        raise NotImplementedError

    # -- its end

    def seconds_to_check(self) -> float:
        return self.check_at - time.monotonic()

    def schedule_check(self, pause: float) -> None:
        """Each check walks /proc, so checks of long commands are rarer, but none is after the deadline."""
        now = time.monotonic()
        pause = max(pause, min(0.25, (now - self.began) / 10))
        self.check_at = now + pause if self.limit else min(self.deadline, now + pause)

    def expired(self) -> bool:
        return time.monotonic() >= self.deadline

    def kill(self, limit: str) -> None:
        """Kills the command itself; the processes it started are killed when it is reaped."""
        self.limit = self.limit or limit
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int | None:
        """Returns the command's wait status once it has ended, else None."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.events.forget(self.pidfd)
        os.close(self.pidfd)
        return status

    def finish(self, status: int) -> None:
        """Called when all of its processes have ended: reads the rest of their output and answers the owner."""
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        # The kernel's signal may come before the watch notices. A shell reports its program's signal the same way.
        self.limit = self.limit or {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file"}.get(code, "")
        self.release()
        self.answer(code)

    def fail(self, reason: CannotStart) -> None:
        """The command could not be started: the owner gets the reason as output, and an exit code."""
        self.add_error(str(reason).encode("utf-8", "surrogateescape"))
        self.release()
        self.answer(reason.code)

    def add_error(self, line: bytes) -> None:
        raise NotImplementedError

    def answer(self, code: int) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Reads what is left in the command's streams and closes them."""
        os.close(self.mark_fd)


def wide_pipe() -> tuple[int, int]:
    """Makes a large pipe whose reading end never blocks."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing
