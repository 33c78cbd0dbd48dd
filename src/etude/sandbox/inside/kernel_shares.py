"""How much of the kernel's tables one box may take, where the kernel counts for each user and not for each box.

A user namespace has limits of its own for file watches and namespaces, and keeps the resource limits that its creator
had. The kernel holds the sum of all users of the namespace to these.
"""

from __future__ import annotations

import functools
import os
import resource
from contextlib import suppress

from etude.sandbox.inside import kernel

_WATCH_LIMITS = {
    "max_inotify_instances": "/proc/sys/fs/inotify/max_user_instances",
    "max_inotify_watches": "/proc/sys/fs/inotify/max_user_watches",
}
"""Limit of a user namespace -> file with the host's own limit for each user."""
_SIGNALS, _QUEUE_BYTES, _LOCKED_BYTES = 4096, 200 << 10, 64 << 10
"""A quarter or less of what Linux gives one user by default."""


def limit_zygote() -> None:
    """Leave a quarter of the caller's file watches to what the caller runs besides boxes. Called in the zygote's user
    namespace, if boxes take from the caller's share."""
    for name, value in _host_limits().items():
        with suppress(OSError):  # In a container, /proc/sys may be read-only. Each box's own limit holds nevertheless.
            kernel.write(f"/proc/sys/user/{name}", str(value * 3 // 4))


def limit_box(proc: str, *, watches: bool) -> None:
    """Forbid new user namespaces in the box and, with `watches`, let it have at most a quarter of one user's file
    watches. Called in the box's user namespace; `proc` is a proc file system of any namespace."""
    limits = {"max_user_namespaces": 0}
    if watches:
        limits |= {name: max(1, value // 4) for name, value in _host_limits().items()}
    for name, value in limits.items():
        kernel.write(f"{proc}/sys/user/{name}", str(value))


@functools.cache
def _host_limits() -> dict[str, int]:
    found = {}
    for name, path in _WATCH_LIMITS.items():
        with suppress(FileNotFoundError), open(path) as file:  # A kernel without inotify has neither.
            found[name] = int(file.read())
    return found


def per_user_limits(processes: int) -> list[tuple[int, int]]:
    """Resource limits that the kernel compares with what all processes of one user have together."""
    return [
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
        (resource.RLIMIT_MSGQUEUE, _QUEUE_BYTES),
        (resource.RLIMIT_MEMLOCK, _LOCKED_BYTES),
    ]


def become_creator(creator: int, processes: int) -> None:
    """Become the user who makes the box's user namespace, with the limits for all users of the box together. Pid 1 is
    one of their processes."""
    # Kept until the new user namespace replaces them, since hosts may forbid users without rights to make one.
    with suppress(kernel.StepFailed):  # A container may lack the right to keep them (CAP_SETPCAP).
        kernel.keep_capabilities(True)
    os.setgroups([])
    os.setresgid(creator, creator, creator)
    os.setresuid(creator, creator, creator)
    # Another user counts as another program for the kernel, so both of these are set again.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, kernel.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    for kind, most in per_user_limits(processes + 1):
        lower_limit(kind, most, most)


def lower_limit(kind: int, soft: int, hard: int) -> None:
    """Set a resource limit, but not above the one that there is."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        hard = min(hard, ceiling) if hard != resource.RLIM_INFINITY else ceiling
    if hard != resource.RLIM_INFINITY:
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(kind, (soft, hard))
