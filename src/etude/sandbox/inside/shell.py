"""A shell: a box in preparation, with its own namespaces, ids and pid 1, that waits for root, order and owner.

Nothing in it depends on an image, so the zygote makes some ahead. It stays in a copy of the zygote's world until the
zygote has put a root into it. Only then is it told what it is, and becomes pid 1 of a box.
"""

# Plain strings and descriptors instead of Path, since this runs for every box.

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable

from etude.sandbox.inside import init, kernel, network, processes, wire
from etude.sandbox.inside.memory import MemoryEvents
from etude.sandbox.inside.zygote_root import HOSTNAME, SHM_MB, World, write_ids

TYPE_CHECKING = False  # As in wire.py.
if TYPE_CHECKING:
    from typing import NoReturn

_SPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_MOST_PASSED = 8
_MOST_DESCRIPTORS = 1 << 20
_LINE = 3
UNMAPPED, STANDING = b"unmapped", b"standing"
"""What a shell reports while it is made; anything else is a failure, as JSON."""


class Shell:
    """The zygote's side of a shell."""

    def __init__(self, world: World, kind: int, clean: int, home: int, program: bytes) -> None:
        """`clean` is the mount namespace to copy, `home` the zygote's own, `kind` the id of boxes with only one."""
        self.world, self.kind = world, kind
        self.space = self.network = -1
        self.failure = kernel.StepFailed("lost", 0)
        """Why the shell could not be made."""
        self.at_end: Callable[[], None] | None = None
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            kernel.enter_mounts(clean)
            try:
                self.pid = kernel.clone(_SPACES)
                if self.pid == 0:
                    _become_pid_1(world, kind, theirs.fileno(), program)
            finally:
                kernel.enter_mounts(home)
        except BaseException:
            self.line.close()
            raise
        finally:
            theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    def map_ids(self) -> None:
        """Writes the id map of the shell's user namespace, opens its others while visible, and lets it go on."""
        process = f"/proc/{self.pid}"
        self.space, self.network = (
            os.open(f"{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "net")
        )
        base = self.world.range_base
        write_ids(process, [(self.kind, 0, 1) if base is None else (0, base, self.world.range_count)])
        self.line.send(b"go")

    def order(self, message: wire.Header, numbers: list[int]) -> None:
        """Turns the shell into a box. `numbers` are its end of the owner's socket and its cgroup's descriptors."""
        socket.send_fds(self.line, [json.dumps(message).encode()], numbers)
        self.line.close()
        os.close(self.network)
        self.network = -1

    def kill(self) -> None:
        """Kills the shell with its whole box. The descriptors of its namespaces are closed first, so the kill also
        frees its mounts, and waiting for it waits for that."""
        self._let_go_of_spaces()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Reaps the shell and closes everything, once it has ended."""
        self.line.close()
        os.waitpid(self.pid, 0)
        self._let_go_of_spaces()
        os.close(self.pidfd)

    def _let_go_of_spaces(self) -> None:
        for number in (self.space, self.network):
            if number >= 0:
                os.close(number)
        self.space = self.network = -1


def _become_pid_1(world: World, kind: int, line_fd: int, program: bytes) -> NoReturn:
    """Runs in the child. Never returns, and never raises into the zygote's code."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(line_fd, _LINE)
        os.closerange(_LINE + 1, _MOST_DESCRIPTORS)
        line = socket.socket(fileno=_LINE)
        try:
            _furnish(world)
            processes.open_own_score()
            kernel.unshare(kernel.CLONE_NEWUSER, "user namespace of a box")
            line.send(UNMAPPED)
            if not line.recv(16):
                os._exit(1)
            init.take_identity(wide=world.wide)
            line.send(STANDING)
        except ConnectionError:
            os._exit(1)  # The zygote is gone.
        except (OSError, kernel.StepFailed) as error:
            number = error.number if isinstance(error, kernel.StepFailed) else error.errno
            line.send(json.dumps({"step": getattr(error, "step", "box"), "number": number}).encode())
            os._exit(1)
        data, numbers = _wait_for_order(line)
        if data:
            line.close()
            message = json.loads(data)
            events = numbers.pop() if message["memory_held"] else None
            for number in (numbers[0], events):
                if number is not None:
                    os.set_inheritable(number, False)
            for door in numbers[1:]:
                os.write(door, b"0")
                os.close(door)
            # From here on, the box sees its cgroup as the top of the tree.
            kernel.unshare(kernel.CLONE_NEWCGROUP, "namespaces")
            memory = MemoryEvents(events)
            init.run((numbers[0], numbers[0]), message, program, wide=world.wide, memory=memory)
    except BaseException:  # noqa: BLE001 - nothing above may go on in this process
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _wait_for_order(line: socket.socket) -> tuple[bytes, list[int]]:
    """Receives the order and its descriptors; empty if the zygote is gone."""
    try:
        data, numbers, _, _ = socket.recv_fds(line, wire.MAX_ORDER, _MOST_PASSED)
    except ConnectionError:
        return b"", []
    return data, numbers


def _furnish(world: World) -> None:
    """Mounts what every box has whatever its image: /proc, terminals, shared memory, a host name, a loopback."""
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "own", "proc", quiet, None, "mount proc")
    owner = "" if world.range_base is None else f",gid={world.range_base + 5}"
    kernel.mount(
        "devpts",
        "dev/pts",
        "devpts",
        quiet & ~kernel.MS_NODEV,
        f"newinstance,ptmxmode=0666,mode=620{owner}",
        "mount devpts",
    )
    owner = "" if world.range_base is None else f",uid={world.range_base},gid={world.range_base}"
    kernel.mount("shm", "dev/shm", "tmpfs", quiet, f"mode=1777,size={SHM_MB}m,nr_inodes=4096{owner}", "mount shm")
    socket.sethostname(HOSTNAME)
    network.raise_device("lo")
