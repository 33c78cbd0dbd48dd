"""The runner: a process that runs one command of a folder box and ends its process tree. It uses only the standard
library.

The runner is the subreaper of everything that the command starts: a process that loses its parent becomes a child of
the runner, so walking down from the runner finds all processes. The process that owns the box holds the write end of a
pipe, called the leash. When that end is closed, for whatever reason, the runner ends the process tree. It sends the
result to the owner as one line of JSON.
"""

# Plain strings and descriptors instead of Path, since nothing else is imported here.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import time
from typing import Any, NoReturn

from etude.sandbox.inside import kernel, seccomp
from etude.sandbox.modes import landlock

FILTER_DESCRIPTOR = 9
"""Descriptor from which bubblewrap reads the seccomp program."""
_WATCH_SECONDS = 0.1
_REAP_SECONDS = 0.001
_TICKS = os.sysconf("SC_CLK_TCK")
_SUBREAPER, _DROP_CAPABILITY = 36, 24
_LAST_CAPABILITY = 63


def main(job: dict[str, Any], leash: int, answer: int) -> None:
    """Run a job and write its result to the descriptor `answer`. The job is a JSON object. Its keys `argv`, `cwd`,
    `env` and `limits` describe the command. Its key `confine` holds the paths for Landlock, or null for no Landlock. If
    its key `filter` is true, the command is bubblewrap, and gets a seccomp program to install.

    `leash` is the read end of a pipe from the process that owns the box. If the owner writes the name of a limit to
    the pipe, the command is killed and the result names that limit.
    """
    kernel.prctl(_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        _exec_command(job)
    for number in range(3):  # Only the command may hold the streams, or they would never end.
        os.close(number)
    status, limit = _wait(pid, leash, job["limits"])
    _kill_all()
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code
    limit = limit or {128 + signal.SIGXCPU: "cpu", 128 + signal.SIGXFSZ: "file"}.get(code, "")
    usage_of_all = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage_of_all.ru_utime + usage_of_all.ru_stime
    os.write(answer, json.dumps({"code": code, "limit": limit, "cpu_seconds": seconds}).encode() + b"\n")


def _wait(pid: int, leash: int, limits: dict[str, int]) -> tuple[int, str]:
    """Return the command's wait status and the limit for which it was killed: one that its process tree exceeded, or
    the one that the owner wrote to the leash. Empty if it was not killed."""
    poll = select.poll()
    poll.register(os.pidfd_open(pid), select.POLLIN)
    poll.register(leash, select.POLLIN)
    limit = ""
    while True:
        for number, _ in poll.poll(_WATCH_SECONDS * 1000):
            if number != leash:
                return os.waitpid(pid, 0)[1], limit
            limit = limit or (os.read(leash, 64).decode() or "cancelled")
        limit = limit or _exceeded_limit(limits)
        if limit:
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1], limit


def _exceeded_limit(limits: dict[str, int]) -> str:
    memory, seconds = usage(descendants(os.getpid()))
    if memory > limits["memory_mb"] << 20:
        return "memory"
    return "cpu" if seconds > limits["cpu_seconds"] else ""


def usage(pids: list[int]) -> tuple[int, float]:
    memory = ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/stat", "rb") as file:
                ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
            with open(f"/proc/{pid}/status", "rb") as file:
                memory += sum(int(line.split()[1]) for line in file if line.startswith((b"RssAnon:", b"RssShmem:")))
    return memory << 10, ticks / _TICKS


def descendants(top: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = list(children.get(top, []))
    for pid in found:  # The list grows while it is walked.
        found += children.get(pid, [])
    return found


def _kill_all() -> None:
    """Kill all descendants until none is left: a process that was already forking when it was stopped finishes the
    fork, so one pass may miss a child."""
    with contextlib.suppress(ChildProcessError):
        while True:
            _stop_and_kill()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_REAP_SECONDS)


def _stop_and_kill() -> None:
    """Stop all descendants, then kill them. A stopped process starts no further fork, so even a fork bomb is caught."""
    known: set[int] = set()
    while fresh := set(descendants(os.getpid())) - known:
        for pid in fresh:
            _send(pid, signal.SIGSTOP)
        known |= fresh
    for pid in known:
        _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


# -- in the child


def _exec_command(job: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.umask(0o022)
        os.chdir(job["cwd"])
        _limit(job["limits"])
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if job["confine"] is not None:
            _confine(job["confine"])
        os.closerange(3, 1 << 20)
        if job["filter"]:
            _offer_filter()
        os.execvpe(job["argv"][0], job["argv"], job["env"])
    except FileNotFoundError as error:
        os.write(2, f"{job['argv'][0]}: {error.strerror}\n".encode())
        os._exit(127)
    except (OSError, kernel.StepFailed) as error:
        os.write(2, f"{job['argv'][0]}: {error}\n".encode())
    finally:
        os._exit(126)


def _limit(limits: dict[str, int]) -> None:
    memory, file, cpu = limits["memory_mb"] << 20, limits["file_mb"] << 20, limits["cpu_seconds"]
    for kind, soft, hard in (
        (resource.RLIMIT_DATA, memory, memory),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_NOFILE, 1024, 1024),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def _confine(places: dict[str, list[str]]) -> None:
    """Confine this process and the command that it will execute: Landlock limits files, our deny-list limits system
    calls, and sockets are local only. The command gets no capabilities."""
    for capability in range(_LAST_CAPABILITY):
        ctypes.CDLL(None).prctl(_DROP_CAPABILITY, capability, 0, 0, 0)
    program = seccomp.build_program(kernel.MACHINE, families=("unix",))
    landlock.restrict(places["read"], places["write"])
    kernel.install_filter(program)


def _offer_filter() -> None:
    """Pass a seccomp program to bubblewrap, which installs it just before it starts the command."""
    number = os.memfd_create("filter", 0)
    os.write(number, seccomp.build_program(kernel.MACHINE))
    os.lseek(number, 0, os.SEEK_SET)
    os.dup2(number, FILTER_DESCRIPTOR)
