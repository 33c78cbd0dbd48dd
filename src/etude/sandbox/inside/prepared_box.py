"""A prepared box: a process that is pid 1 of its own namespaces and waits for a root file system and an order.

A prepared box depends on no image, so the zygote prepares some ahead. It stays in a copy of the zygote's root until the
zygote puts a root file system into its mount namespace. Then it receives its order (user, limits, environment, and the
socket to the owner process) and becomes pid 1 of a box.
"""

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
from etude.sandbox.inside.zygote_root import HOSTNAME, SHM_MB, ZygoteSettings, write_ids

TYPE_CHECKING = False  # As in wire.py.
if TYPE_CHECKING:
    from typing import NoReturn

_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_MAX_PASSED = 8
_MAX_DESCRIPTORS = 1 << 20
_CONTROL_FD = 3
UNMAPPED, STANDING = b"unmapped", b"standing"
"""Reports of a box that is being prepared: it waits for its id map; it is ready. Any other is a failure, as JSON."""


class PreparedBox:
    """The zygote's handle of a box's process, from the preparation (still without an image) to the end of the box."""

    def __init__(
        self, settings: ZygoteSettings, single_id: int, template: int, own_namespace: int, program: bytes
    ) -> None:
        """Clone the box's process. `template` is the mount namespace to copy, `own_namespace` the zygote's own.
        `single_id` is the box's user id if boxes have only one."""
        self.settings, self.single_id = settings, single_id
        self.mount_namespace = self.network_namespace = -1
        self.failure = kernel.StepFailed("lost", 0)
        """Stays "lost" if the box's process dies without reporting a failed step."""
        self.at_end: Callable[[], None] | None = None
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            kernel.enter_mounts(template)
            try:
                self.pid = kernel.clone(_NAMESPACES)
                if self.pid == 0:
                    _become_pid_1(settings, single_id, theirs.fileno(), program)
            finally:
                kernel.enter_mounts(own_namespace)
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    def map_ids(self) -> None:
        """Let the box continue with its id map. Its namespaces are opened first, since pid 1 soon denies access to
        them."""
        process = f"/proc/{self.pid}"
        self.mount_namespace, self.network_namespace = (
            os.open(f"{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "net")
        )
        base = self.settings.range_base
        write_ids(process, [(self.single_id, 0, 1) if base is None else (0, base, self.settings.range_count)])
        self.control.send(b"go")

    def order(self, message: wire.Header, numbers: list[int]) -> None:
        """Send the order that turns this into a box (user, limits, environment), with the box's end of the owner's
        socket and the files of its cgroups."""
        socket.send_fds(self.control, [json.dumps(message).encode()], numbers)
        self.control.close()
        os.close(self.network_namespace)
        self.network_namespace = -1

    def kill(self) -> None:
        """Kill pid 1, and with it the whole box.

        The descriptors of its namespaces are closed first: once all are closed, the kernel frees the box's mounts
        before pid 1 counts as ended. So whoever waits for the end of pid 1 finds the mounts freed."""
        self._close_namespaces()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        self.control.close()
        os.waitpid(self.pid, 0)
        self._close_namespaces()
        os.close(self.pidfd)

    def _close_namespaces(self) -> None:
        for number in (self.mount_namespace, self.network_namespace):
            if number >= 0:
                os.close(number)
        self.mount_namespace = self.network_namespace = -1


def _become_pid_1(settings: ZygoteSettings, single_id: int, control_fd: int, program: bytes) -> NoReturn:
    """Run in the cloned child, which never returns or raises into the zygote's code."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(control_fd, _CONTROL_FD)
        os.closerange(_CONTROL_FD + 1, _MAX_DESCRIPTORS)
        control = socket.socket(fileno=_CONTROL_FD)
        try:
            _mount_system_folders(settings)
            processes.open_oom_score()
            kernel.unshare(kernel.CLONE_NEWUSER, "user namespace of a box")
            control.send(UNMAPPED)
            if not control.recv(16):
                os._exit(1)
            init.take_identity(many_ids=settings.many_ids)
            control.send(STANDING)
        except ConnectionError:
            os._exit(1)  # The zygote is gone.
        except (OSError, kernel.StepFailed) as error:
            number = error.number if isinstance(error, kernel.StepFailed) else error.errno
            control.send(json.dumps({"step": getattr(error, "step", "box"), "number": number}).encode())
            os._exit(1)
        data, numbers = _wait_for_order(control)
        if data:
            control.close()
            message = json.loads(data)
            events = numbers.pop() if message["memory_held"] else None
            for number in (numbers[0], events):
                if number is not None:
                    os.set_inheritable(number, False)
            for entry in numbers[1:]:
                os.write(entry, b"0")
                os.close(entry)
            # From here on, the box's own cgroup looks like the root of the cgroup tree.
            kernel.unshare(kernel.CLONE_NEWCGROUP, "namespaces")
            memory = MemoryEvents(events)
            init.run((numbers[0], numbers[0]), message, program, many_ids=settings.many_ids, memory=memory)
    except BaseException:  # noqa: BLE001 - the zygote's code must not continue in this process
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _wait_for_order(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return the order and its descriptors, or (b"", []) if the zygote has ended."""
    try:
        data, numbers, _, _ = socket.recv_fds(control, wire.MAX_ORDER, _MAX_PASSED)
    except ConnectionError:
        return b"", []
    return data, numbers


def _mount_system_folders(settings: ZygoteSettings) -> None:
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "own", "proc", quiet, None, "mount proc")
    owner = "" if settings.range_base is None else f",gid={settings.range_base + 5}"
    kernel.mount(
        "devpts",
        "dev/pts",
        "devpts",
        quiet & ~kernel.MS_NODEV,
        f"newinstance,ptmxmode=0666,mode=620{owner}",
        "mount devpts",
    )
    owner = "" if settings.range_base is None else f",uid={settings.range_base},gid={settings.range_base}"
    kernel.mount("shm", "dev/shm", "tmpfs", quiet, f"mode=1777,size={SHM_MB}m,nr_inodes=4096{owner}", "mount shm")
    socket.sethostname(HOSTNAME)
    network.raise_device("lo")
