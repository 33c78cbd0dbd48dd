"""How much of the kernel's tables one box may take, where the kernel counts for each user and not for each box.

A user namespace has its own limits for file watches and namespaces, which apply to each of its users. It also keeps the
resource limits that its creator had: all users of the namespace together cannot exceed these.
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
"""A box's limits of pending signals, of bytes in message queues, and of locked memory. Each is a quarter or less of
what Linux gives one user by default."""


def limit_zygote() -> None:
    """Limit each user of the zygote's namespace to three quarters of the file watches that the host gives one user. If
    all boxes count as one such user, the caller keeps a quarter for what it runs besides boxes. Called in the zygote's
    user namespace, if boxes take from the caller's share."""
    for name, value in _host_limits().items():
        with suppress(OSError):  # In a container, /proc/sys may be read-only. Each box's own limit holds nevertheless.
            kernel.write(f"/proc/sys/user/{name}", str(value * 3 // 4))


def limit_box(proc: str, *, watches: bool) -> None:
    """Forbid new user namespaces in the box. With `watches`, let each user of the box have at most a quarter of the
    file watches that the host gives one user. Called in the box's user namespace; `proc` is a proc file system of any
    namespace."""
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
    """Return (resource, limit) pairs for the resources that the kernel counts over all processes of one user."""
    return [
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
        (resource.RLIMIT_MSGQUEUE, _QUEUE_BYTES),
        (resource.RLIMIT_MEMLOCK, _LOCKED_BYTES),
    ]


def become_creator(creator: int, processes: int) -> None:
    """Become the user `creator`, who then makes the box's user namespace, and set the resource limits that all users of
    the box together cannot exceed. `processes` does not include pid 1, for which one is added."""
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
    """Set a resource limit of this process, but not above its present hard limit."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        hard = min(hard, ceiling) if hard != resource.RLIM_INFINITY else ceiling
    if hard != resource.RLIM_INFINITY:
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(kind, (soft, hard))
