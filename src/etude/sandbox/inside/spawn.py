"""Starts commands from pid 1 with posix_spawn. During a start, pid 1 takes on the command's user, folder and limits.

posix_spawn lets the child share pid 1's memory until the child's program starts. So no page is copied, and a start
costs half as much as with fork(). The child inherits what posix_spawn cannot set (user, folder, limits) from pid 1,
which therefore sets it before the start and resets it afterwards. Meanwhile pid 1's saved user id stays 0, so pid 1 can
return to root, and other processes cannot trace it. The child's exec overwrites the saved id and drops the
capabilities.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from etude.sandbox.inside import files, kernel, processes
from etude.sandbox.inside.kernel_shares import lower_limit, per_user_limits
from etude.sandbox.inside.users import User

_OWN_MEMORY = 128 << 20
"""Bytes that pid 1 may need beyond a command's limit, for requests and answers in progress."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DENIED, _NOT_FOUND = 126, 127


class CannotStart(Exception):
    """A program cannot be started. Carries the exit code and the message that a shell would give."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


class Launch:
    """What a command is started with, except its streams. `timeout` is in seconds."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str, user: User, timeout: float) -> None:
        self.argv, self.env, self.cwd, self.user, self.timeout = argv, env, cwd, user, timeout


class Identity:
    """Switches the user that pid 1 acts as. Between command starts, pid 1 is root of the box, but accesses files as
    `file_user`, the image's default user. If `many_ids` is false, the box has a single user id, and all methods do
    nothing."""

    def __init__(self, many_ids: bool, file_user: User) -> None:
        self.many_ids, self.file_user = many_ids, file_user

    def restore(self) -> None:
        if self.many_ids:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups(self.file_user.groups)
            kernel.act_as(self.file_user.uid, self.file_user.gid)

    def be_root(self) -> None:
        """Access files as root until the next `restore`, to examine other users' processes."""
        if self.many_ids:
            kernel.act_as(0, 0)

    def become(self, uid: int) -> None:
        """Take the effective user id, without root's rights, until the next `become` or `restore`."""
        if self.many_ids:
            os.seteuid(0)
            os.seteuid(uid)

    def assume(self, user: User) -> None:
        """Become the given user, but keep 0 as the saved ids, which allows the return to root."""
        if self.many_ids:
            os.setgroups(user.groups)
            os.setresgid(user.gid, user.gid, 0)
            os.setresuid(user.uid, user.uid, 0)


def set_lasting_limits(limits: dict[str, int]) -> None:
    """Set the resource limits of pid 1, which all processes of the box inherit and cannot exceed."""
    memory = limits["memory_mb"] << 20
    file = limits["file_mb"] << 20
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, file, file),
        *((kind, most, most) for kind, most in per_user_limits(limits["processes"])),
        (resource.RLIMIT_NOFILE, 1024, 1024),
        (resource.RLIMIT_STACK, 8 << 20, 8 << 20),
        (resource.RLIMIT_DATA, resource.RLIM_INFINITY, memory + file + _OWN_MEMORY),
    ):
        lower_limit(kind, soft, hard)


@contextlib.contextmanager
def memory_of_an_answer(limits: dict[str, int], base: int) -> Iterator[None]:
    """Let pid 1 take at most half of the box's memory in this block, beyond the `base` bytes of data that it has at
    rest; else MemoryError. The rest of the box's memory may be in tmpfs files, so that the kernel could kill only pid 1
    to free memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lower_limit(resource.RLIMIT_DATA, base + (limits["memory_mb"] << 19), hard)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_bytes() -> int:
    """Bytes of data of this process, as RLIMIT_DATA counts them."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


class Spawner:
    def __init__(self, identity: Identity, limits: dict[str, int]) -> None:
        self._identity = identity
        # Limits of single processes for data size and CPU time. Pid 1 itself may use more, so they are set only during
        # a start. Pid 1 checks the sums over all processes. RLIMIT_AS would break programs that only reserve address
        # space (Go, node).
        self._for_commands = [
            (resource.RLIMIT_DATA, limits["memory_mb"] << 20),
            (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        ]
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def spawn(self, launch: Launch, streams: tuple[int | None, int, int] | str) -> int:
        """Start the command as a session leader. `streams` are stdin (None: empty), stdout and stderr, or the path of a
        terminal. Raises CannotStart where a shell would report an error, and Refused for arguments that no program can
        take."""
        before = [resource.getrlimit(kind) for kind, _ in self._for_commands]
        try:
            for (kind, soft), (_, hard) in zip(self._for_commands, before, strict=True):
                resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
            self._identity.assume(launch.user)
            os.chdir(launch.cwd)
            program = find_program(launch.argv[0], launch.env.get("PATH", _DEFAULT_PATH))
            processes.prefer_for_oom_kill(True)
            return os.posix_spawn(program, launch.argv, launch.env, file_actions=self._actions(streams), setsid=True)
        except ValueError as error:
            raise files.Refused(f"not a command: {error}") from None
        except OSError as error:
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            name = error.filename or launch.argv[0]
            raise CannotStart(_NOT_FOUND if missing else _DENIED, f"{name}: {error.strerror}\n") from None
        finally:
            processes.prefer_for_oom_kill(False)
            os.chdir("/")
            self._identity.restore()
            for (kind, _), limit in zip(self._for_commands, before, strict=True):
                resource.setrlimit(kind, limit)

    def open_terminal(self, user: User) -> tuple[int, int]:
        """Open a pseudo-terminal that belongs to the user. Return its master and slave end."""
        self._identity.assume(user)
        try:
            return os.openpty()
        except OSError as error:
            raise files.Refused(f"cannot open a terminal: {error.strerror} (/dev/ptmx)") from None
        finally:
            self._identity.restore()

    def _actions(self, streams: tuple[int | None, int, int] | str) -> list[tuple[int, ...]]:
        if isinstance(streams, str):
            # The first terminal that a session leader opens becomes its controlling terminal.
            opened = (os.POSIX_SPAWN_OPEN, 0, streams, os.O_RDWR, 0)
            return [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]  # type: ignore[list-item]
        numbers = [self._null if number is None else number for number in streams]
        return [(os.POSIX_SPAWN_DUP2, number, path) for path, number in enumerate(numbers)]


def find_program(name: str, path: str) -> str:
    """Search the folders of `path` for a program. A file that may not be executed is returned if there is no other, so
    that the start fails with the reason. Raises FileNotFoundError if there is none."""
    if "/" in name or not name:
        return name
    denied = ""
    for folder in path.split(":"):
        path = f"{folder or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
        if os.path.lexists(path):
            denied = denied or path
    if denied:
        return denied
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
