"""One running command: started with limits and a mark that descendants cannot shed, drained, ended as a whole tree."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from etude.sandbox.inside import kernel, processes

_CHUNK = 1 << 16
_PIPE_BYTES = 1 << 20
_MOST_DESCRIPTORS = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    argv: list[str]
    env: dict[str, str]
    cwd: str
    uid: int | None
    stdin: bytes
    timeout: float
    limits: dict[str, int]


class Command:
    def __init__(self, ticket: int, start: Start) -> None:
        self.ticket, self.limits = ticket, start.limits
        self.began = time.monotonic()
        self.deadline = self.began + start.timeout
        self.look_at = min(self.deadline, self.began + 0.05)
        self.limit = ""
        self.kept: dict[int, bytearray] = {}
        self.dropped = False
        # Pid 1 goes ahead into the new namespace, so the command is in it from its first step. The open file keeps the
        # mark from being given to a later command before this one is answered.
        kernel.unshare(kernel.CLONE_NEWUTS, "mark")
        self.held = os.open("/proc/self/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        self.mark = processes.own_mark()
        self.out, self.err, self.pid = self._fork(start)
        self.pidfd = os.pidfd_open(self.pid)

    def _fork(self, start: Start) -> tuple[int, int, int]:
        out, out_child = os.pipe()
        err, err_child = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(start, out_child, err_child)
        for number in (out_child, err_child):
            os.close(number)
        for number in (out, err):
            os.set_blocking(number, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self.kept[number] = bytearray()
        return out, err, pid

    def pipes(self) -> list[int]:
        return [self.out, self.err, self.pidfd]

    def take_output(self, number: int) -> bool:
        """Reads what is there, keeps what fits, drops the rest; False at the end of the stream."""
        room = self.limits["output_bytes"]
        for _ in range(16):  # A flood must not keep pid 1 from its deadlines.
            try:
                data = os.read(number, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            kept = self.kept[number]
            if len(kept) + len(data) > room:
                self.dropped = True
                data = data[: room - len(kept)]
            kept += data
        return True

    # -- the end

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

    def reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return status

    def result(self, status: int) -> tuple[dict[str, Any], bytes]:
        for number in (self.out, self.err):
            # Bounded: a writer of another command may hold the pipe open, or even fill it for ever.
            for _ in range(_PIPE_BYTES // _CHUNK):
                if not self.take_output(number):
                    break
            os.close(number)
        os.close(self.held)
        code = os.waitstatus_to_exitcode(status)
        if not self.limit:
            self.limit = {-signal.SIGXCPU: "cpu", -signal.SIGXFSZ: "file"}.get(code, "")
        stdout, stderr = bytes(self.kept[self.out]), bytes(self.kept[self.err])
        header = {
            "ticket": self.ticket,
            "code": code if code >= 0 else 128 - code,
            "seconds": time.monotonic() - self.began,
            "limit": self.limit,
            "truncated": self.dropped,
            "split": len(stdout),
        }
        return header, stdout + stderr


def _become(start: Start, out: int, err: int) -> NoReturn:
    """In the child: from pid 1's image to the command. Never returns, and never raises into pid 1's code."""
    try:
        stdin = _stdin(start.stdin)
        os.dup2(stdin, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        # Nothing of pid 1's may be inherited, above all not the socket on which it answers for the box.
        os.closerange(3, _MOST_DESCRIPTORS)
        os.setsid()
        os.umask(0o022)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; programs expect them.
            signal.signal(number, signal.SIG_DFL)
        _limit(start.limits)
        if start.uid is not None:
            os.setgroups([])
            os.setresgid(start.uid, start.uid, start.uid)
            os.setresuid(start.uid, start.uid, start.uid)
        os.chdir(start.cwd)
        os.execvpe(start.argv[0], start.argv, start.env)
    except FileNotFoundError as error:
        _give_up(127, f"{error.filename}: {error.strerror}")
    except (OSError, ValueError) as error:
        _give_up(126, f"{getattr(error, 'filename', None) or start.argv[0]}: {error}")
    finally:
        os._exit(126)


def _give_up(code: int, why: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"{why}\n".encode("utf-8", "surrogateescape"))
    os._exit(code)


def _stdin(data: bytes) -> int:
    if not data:
        return os.open("/dev/null", os.O_RDONLY)
    number = os.memfd_create("stdin")
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _limit(limits: dict[str, int]) -> None:
    memory, file = limits["memory_mb"] << 20, limits["file_mb"] << 20
    cpu = limits["cpu_seconds"]
    for kind, soft, hard in (
        # Private writable memory of one process; pid 1 watches the sum over all. RLIMIT_AS would break programs that
        # only reserve addresses (Go, node).
        (resource.RLIMIT_DATA, memory, memory),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
        (resource.RLIMIT_NOFILE, 1024, 1024),
        (resource.RLIMIT_STACK, 8 << 20, 8 << 20),
        (resource.RLIMIT_MEMLOCK, 64 << 10, 64 << 10),
    ):
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))
