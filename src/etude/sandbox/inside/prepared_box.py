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

from etude.sandbox.inside import init, kernel, kernel_shares, network, processes, wire
from etude.sandbox.inside.box_ids import BoxIds
from etude.sandbox.inside.memory import CgroupMemory
from etude.sandbox.inside.zygote_root import HOSTNAME, SHM_MB, ZygoteSettings, write_ids

TYPE_CHECKING = False  # As in wire.py.
if TYPE_CHECKING:
    from typing import NoReturn

_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_MAX_PASSED = 8
_MAX_DESCRIPTORS = 1 << 20
_CONTROL_FD = 3
MAX_TERMINALS = 64
"""Pseudo-terminals of one box. The kernel has 4,096 for all users together (kernel.pty.max)."""
UNMAPPED, STANDING = b"unmapped", b"standing"
"""Reports of a box that is being prepared: it waits for its id map; it is ready. Any other is a failure, as JSON."""


Kind = tuple[int, int]
"""What a prepared box is made for: the user id of a box that has only one, and the process limit."""


class PreparedBox:
    """The zygote's handle of a box's process, from the preparation (still without an image) to the end of the box."""

    def __init__(
        self, settings: ZygoteSettings, kind: Kind, ids: BoxIds, template: int, own_namespace: int, program: bytes
    ) -> None:
        """Clone the box's process. `template` is the mount namespace to copy, `own_namespace` the zygote's own."""
        self.settings, self.kind, self.ids = settings, kind, ids
        self.mount_namespace = self.network_namespace = -1
        self.user_namespace = -1
        """Descriptor of the box's user namespace, open until the order is sent. -1 if files need no other owners in the
        box."""
        self.failure = kernel.StepFailed("lost", 0)
        """The step that failed while the box's process was prepared. Stays "lost" if the process dies without reporting
        one."""
        self.at_end: Callable[[], None] | None = None
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            kernel.enter_mounts(template)
            try:
                self.pid = kernel.clone(_NAMESPACES)
                if self.pid == 0:
                    _become_pid_1(settings, kind, ids, theirs.fileno(), program)
            finally:
                kernel.enter_mounts(own_namespace)
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    def map_ids(self) -> None:
        """Write the box's id map and let its waiting process continue. The descriptors of the process's namespaces are
        opened first, since pid 1 soon denies access to them."""
        process = f"/proc/{self.pid}"
        self.mount_namespace, self.network_namespace = (
            os.open(f"{process}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "net")
        )
        single_id, _ = self.kind
        first = self.ids.first
        write_ids(process, [(single_id, 0, 1) if first < 0 else (0, first, self.settings.range_count)])
        if self.ids.namespace >= 0:
            self.user_namespace = os.open(f"{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        self.control.send(b"go")

    def order(self, message: wire.Header, numbers: list[int]) -> None:
        """Send the order that turns this process into a box: its user, limits and environment. `numbers` are the
        descriptors that go with it: the box's end of the socket to the owner process, then the files of its cgroups."""
        socket.send_fds(self.control, [json.dumps(message).encode()], numbers)
        self.control.close()
        for number in (self.network_namespace, self.user_namespace):
            if number >= 0:
                os.close(number)
        self.network_namespace = self.user_namespace = -1

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
        for number in (self.mount_namespace, self.network_namespace, self.user_namespace):
            if number >= 0:
                os.close(number)
        self.mount_namespace = self.network_namespace = self.user_namespace = -1


def _become_pid_1(settings: ZygoteSettings, kind: Kind, ids: BoxIds, control_fd: int, program: bytes) -> NoReturn:
    """Code of the cloned child: set up its namespaces, wait for the order, and run as pid 1 of a box. It never returns
    or raises into the zygote's code."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(control_fd, _CONTROL_FD)
        os.closerange(_CONTROL_FD + 1, _MAX_DESCRIPTORS)
        control = socket.socket(fileno=_CONTROL_FD)
        try:
            _mount_system_folders(ids)
            processes.open_oom_score()
            if ids.creator >= 0:
                kernel_shares.become_creator(ids.creator, kind[1])
            kernel.unshare(kernel.CLONE_NEWUSER, "user namespace of a box")
            control.send(UNMAPPED)
            if not control.recv(16):
                os._exit(1)
            # Boxes whose creator is a user of its own have what the host gives one user.
            kernel_shares.limit_box("own", watches=ids.creator < 0 or settings.subordinate is not None)
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
            channel, *entries = numbers
            stat, events = (entries.pop(), entries.pop()) if message["memory_held"] else (-1, -1)
            for number in (channel, stat, events):
                if number >= 0:
                    os.set_inheritable(number, False)
            for entry in entries:
                os.write(entry, b"0")
                os.close(entry)
            # From here on, the box's own cgroup looks like the root of the cgroup tree.
            kernel.unshare(kernel.CLONE_NEWCGROUP, "namespaces")
            memory = CgroupMemory((events, stat) if message["memory_held"] else None)
            init.run((channel, channel), message, program, many_ids=settings.many_ids, memory=memory)
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


def _mount_system_folders(ids: BoxIds) -> None:
    quiet = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "own", "proc", quiet, None, "mount proc")
    owner = "" if ids.first < 0 else f",gid={ids.first + 5}"
    kernel.mount(
        "devpts",
        "dev/pts",
        "devpts",
        quiet & ~kernel.MS_NODEV,
        f"newinstance,ptmxmode=0666,mode=620,max={MAX_TERMINALS}{owner}",
        "mount devpts",
    )
    owner = "" if ids.first < 0 else f",uid={ids.first},gid={ids.first}"
    kernel.mount("shm", "dev/shm", "tmpfs", quiet, f"mode=1777,size={SHM_MB}m,nr_inodes=4096{owner}", "mount shm")
    socket.sethostname(HOSTNAME)
    network.raise_device("lo")
