"""One command: started with a mark that descendants cannot shed, watched, and ended as a whole tree."""

# Plain strings and descriptors instead of Path: this runs for every command of every box.

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
    """What those that the owner waits for (foreground.py) and those in the background (background.py) share."""

    def __init__(self, number: int, launch: Launch, events: Events) -> None:
        self.number, self.events = number, events
        self.began = time.monotonic()
        self.deadline = self.began + launch.timeout
        self.look_at = min(self.deadline, self.began + 0.05)
        self.limit = ""
        self.pid = self.pidfd = -1
        # Pid 1 goes ahead into the new namespace, so the command is in it from its first step. The open file keeps the
        # mark from being given to a later command before this one is answered.
        kernel.unshare(kernel.CLONE_NEWUTS, "mark")
        self.held = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        self.mark = f"uts:[{os.fstat(self.held).st_ino}]"

    def begin(self, spawner: Spawner, launch: Launch, streams: tuple[int | None, int, int] | str) -> None:
        self.pid = spawner.spawn(launch, streams)
        self.pidfd = os.pidfd_open(self.pid)

    # -- its output

    def take_output(self, number: int) -> None:
        """Reads what is there, and stops listening at the end of the stream."""
        for _ in range(16):  # A flood must not keep pid 1 from its deadlines.
            try:
                data = os.read(number, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.events.forget(number)
                return
            self.heard(number, data)

    def take_rest(self, number: int) -> None:
        """Bounded: a writer of another command may hold the pipe open, or even fill it for ever."""
        self.events.forget(number)
        for _ in range(PIPE_BYTES // CHUNK):
            try:
                data = os.read(number, CHUNK)
            except OSError:  # Nothing there, or a terminal without any program.
                break
            if not data:
                break
            self.heard(number, data)
        os.close(number)

    def heard(self, number: int, data: bytes) -> None:
        """It has said something there."""
        raise NotImplementedError

    # -- its end

    def next_look(self) -> float:
        return self.look_at - time.monotonic()

    def looked(self, pause: float) -> None:
        """A look costs a walk over /proc: rare for long commands, never later than the deadline."""
        now = time.monotonic()
        pause = max(pause, min(0.25, (now - self.began) / 10))
        self.look_at = now + pause if self.limit else min(self.deadline, now + pause)

    def expired(self) -> bool:
        return time.monotonic() >= self.deadline

    def kill(self, limit: str) -> None:
        """Ends the command; what it started is ended when it is reaped."""
        self.limit = self.limit or limit
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int | None:
        """The command's status once it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.events.forget(self.pidfd)
        os.close(self.pidfd)
        return status

    def finish(self, status: int) -> None:
        """All of its processes have ended: collects what they said, and tells the owner."""
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        # A shell says so of the program that it ran, too: the kernel may be quicker than the watch.
        self.limit = self.limit or {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file"}.get(code, "")
        self.release()
        self.answer(code)

    def fail(self, reason: CannotStart) -> None:
        """It could not be started: to the owner it has said why and ended."""
        self.complain(str(reason).encode("utf-8", "surrogateescape"))
        self.release()
        self.answer(reason.code)

    def complain(self, line: bytes) -> None:
        raise NotImplementedError

    def answer(self, code: int) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Takes what is left in its streams, and closes everything."""
        os.close(self.held)


def wide_pipe() -> tuple[int, int]:
    """Its reading end never blocks."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing
