"""The zygote: one single-threaded process per backend from which every box is cloned, ready-made and cheap.

It lives exactly as long as its owner: it ends when the owner's process or its end of the socket goes, and every box
ends with it. Requests are small JSON messages on a SOCK_SEQPACKET socket; `create` carries the box's end of its own
socket.
"""

# Plain strings and descriptors instead of Path: this runs for every command of every box.
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from etude.sandbox.inside import init, kernel, rootfs, seal, seccomp, wire

_SPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
MESSAGE = 1 << 17


class Zygote:
    def __init__(self, control: socket.socket, world: rootfs.World) -> None:
        self.control, self.world = control, world
        self.program = seccomp.build_program(kernel.MACHINE)
        self.boxes: dict[str, tuple[int, str]] = {}
        """Box id -> (pid of its init, its cell)."""
        self.watched: dict[int, Callable[[], None]] = {}
        self.poll = select.poll()

    def watch(self, number: int, callback: Callable[[], None]) -> None:
        self.watched[number] = callback
        self.poll.register(number, select.POLLIN)

    def unwatch(self, number: int) -> None:
        self.poll.unregister(number)
        del self.watched[number]

    def send(self, message: wire.Header) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            sys.exit(0)  # The owner is gone; so are we, and every box with us.

    def serve(self) -> None:
        owner = os.pidfd_open(os.getppid())
        self.watch(owner, lambda: sys.exit(0))
        self.watch(self.control.fileno(), self.receive)
        while True:
            for number, _ in self.poll.poll():
                if number in self.watched:
                    self.watched[number]()

    def receive(self) -> None:
        try:
            data, passed, _, _ = socket.recv_fds(self.control, MESSAGE, 4)
        except ConnectionError:  # The owner went without reading what we sent.
            data, passed = b"", []
        if not data:
            sys.exit(0)
        message = json.loads(data)
        if message["op"] == "create":
            self.create(message, passed[0])
        elif message["op"] == "destroy":
            self.destroy(message["id"])
        elif message["op"] == "seal":
            self.seal(message)
        elif message["op"] == "release":
            shutil.rmtree(message["path"], ignore_errors=True)

    # -- boxes

    def create(self, message: dict[str, Any], box_end: int) -> None:
        name, cell = message["id"], message["cell"]
        try:
            rootfs.make_cell(self.world, cell, message["limits"]["disk_mb"])
            ours, theirs = socket.socketpair()
            pid = kernel.clone(_SPACES)
        except (OSError, kernel.StepFailed) as error:
            rootfs.remove_cell(self.world, cell)
            os.close(box_end)
            self.send({"gone": name, "error": str(error), "step": getattr(error, "step", "cell")})
            return
        if pid == 0:
            ours.close()
            self.become_box(message, box_end, theirs)
        theirs.close()
        os.close(box_end)
        self.boxes[name] = (pid, cell)
        pidfd = os.pidfd_open(pid)
        self.watch(pidfd, lambda: self.reap(name, pidfd))
        self.watch(ours.fileno(), lambda: self.map_ids(pid, ours))

    def become_box(self, message: dict[str, Any], box_end: int, zygote_end: socket.socket) -> None:
        """In the child: builds the root, waits for its ids, becomes pid 1. Never returns."""
        control = socket.socket(fileno=box_end)
        for number in self.watched:
            os.close(number)
        try:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            rootfs.enter_box(self.world, message["cell"], message["layers"], message["workdir"])
            kernel.unshare(kernel.CLONE_NEWUSER, "user namespace of a box")
            zygote_end.send(b"m")
            if not zygote_end.recv(1):
                os._exit(1)
            zygote_end.close()
            init.take_identity(second_user=self.world.outer_ids is not None)
        except (OSError, kernel.StepFailed) as error:
            # Blocking is right here: the owner reads this frame or has closed the socket.
            control.setblocking(True)
            with contextlib.suppress(OSError):
                control.sendall(wire.pack({"ready": False, "error": str(error), "step": getattr(error, "step", "box")}))
            os._exit(1)
        init.run(control, message, self.program, second_user=self.world.outer_ids is not None)
        os._exit(0)

    def map_ids(self, pid: int, ours: socket.socket) -> None:
        """The child has a new user namespace: fill in its ids, then let it go on."""
        self.unwatch(ours.fileno())
        outer = self.world.outer_ids
        inner = [0, *init.USERS.values()] if outer else [init.USERS["agent"]]
        lines = "\n".join(f"{box} {host} 1" for box, host in zip(inner, outer or [0], strict=True))
        with contextlib.suppress(OSError):  # The child may have died; its pidfd tells.
            if ours.recv(1):
                for kind in ("uid_map", "gid_map"):
                    with open(f"/proc/{pid}/{kind}", "w") as file:
                        file.write(lines)
                ours.send(b"g")
        ours.close()

    def destroy(self, name: str) -> None:
        if name not in self.boxes:
            self.send({"gone": name})
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.boxes[name][0], signal.SIGKILL)

    def reap(self, name: str, pidfd: int) -> None:
        self.unwatch(pidfd)
        os.close(pidfd)
        pid, cell = self.boxes.pop(name)
        os.waitpid(pid, 0)
        rootfs.remove_cell(self.world, cell)
        self.send({"gone": name})

    # -- frozen copies

    def seal(self, message: dict[str, Any]) -> None:
        """Copies what a box wrote into a layer, in a helper process: a large copy must not hold up other boxes."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            theirs.send(json.dumps(seal.attempt(message["source"], message["target"])).encode())
            os._exit(0)
        theirs.close()
        self.watch(ours.fileno(), lambda: self.sealed(message["ticket"], pid, ours))

    def sealed(self, ticket: int, pid: int, ours: socket.socket) -> None:
        self.unwatch(ours.fileno())
        data = ours.recv(MESSAGE)
        ours.close()
        os.waitpid(pid, 0)
        answer = json.loads(data) if data else {"error": "the copying process died", "kind": "lost"}
        self.send({"sealed": ticket, **answer})


def main(control_fd: int) -> None:
    control = socket.socket(fileno=control_fd)
    world = rootfs.World(**json.loads(control.recv(MESSAGE)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the owner, which closes boxes in order.
    os.umask(0o022)
    try:
        zygote = Zygote(control, world)
        if world.outer_ids is None:
            rootfs.enter_user_namespace()
        rootfs.enter_world(world)
    except (kernel.StepFailed, OSError, KeyError) as error:
        step = getattr(error, "step", "machine" if isinstance(error, KeyError) else "start")
        control.send(json.dumps({"ready": False, "error": str(error), "step": step}).encode())
        return
    kernel.rename_process("etude-sandbox")
    gc.collect()
    gc.disable()
    gc.freeze()
    zygote.send({"ready": True})
    zygote.serve()
