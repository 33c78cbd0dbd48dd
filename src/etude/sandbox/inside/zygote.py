"""The zygote: one single-threaded process per backend from which all boxes are cloned, cheaply and ready-made.

It lives exactly as long as its owner: it ends when the owner's process or its end of the socket goes, and every box
ends with it. Requests are small JSON messages on a SOCK_SEQPACKET socket. `create` also carries descriptors: the box's
end of its own socket, that of its network gate's socket if it has one, and the doors of its cgroups.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable

from etude.sandbox.inside import init, kernel, network, rootfs, seal, seccomp, subordinate, wire
from etude.sandbox.inside.nursery import KINDS, Nursery
from etude.sandbox.inside.shell import Shell
from etude.sandbox.inside.zygote_root import World, enter_user_namespace, enter_world

_MOST_PASSED = 8
_MOST_LEFT = 64
"""Cells whose removal may be put off until the zygote is idle, since unmounting a cell waits for all CPUs."""


class Zygote:
    def __init__(self, control: socket.socket, world: World, programs: dict[int, bytes]) -> None:
        self.control, self.world = control, world
        self.boxes: dict[str, tuple[Shell, wire.Header]] = {}
        """Box id -> (its pid 1, its order)."""
        self.left: list[str] = []
        """Cells to remove."""
        self.watched: dict[int, Callable[[], None]] = {}
        self.poll = select.epoll()
        self.nursery = Nursery(world, programs, self.watch, self.unwatch)

    def watch(self, number: int, callback: Callable[[], None]) -> None:
        self.watched[number] = callback
        self.poll.register(number, select.EPOLLIN)

    def unwatch(self, number: int) -> None:
        """Stops watching a descriptor. Call it before closing; harmless if it is not watched."""
        if self.watched.pop(number, None):
            self.poll.unregister(number)

    def send(self, message: wire.Header) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            sys.exit(0)  # The owner is gone, so the zygote ends, and every box with it.

    def serve(self) -> None:
        owner = os.pidfd_open(os.getppid())
        self.watch(owner, lambda: sys.exit(0))
        self.watch(self.control.fileno(), self.receive)
        while True:
            # Work that nobody waits for is done when there is nothing else to do.
            events = self.poll.poll(0 if self.nursery.short or self.left else None)
            for number, _ in events:
                if number in self.watched:
                    self.watched[number]()
            if not events and self.nursery.short:
                self.nursery.make_one()
            elif self.left and (not events or len(self.left) > _MOST_LEFT):
                rootfs.remove_cell(self.world, self.left.pop(0))

    def receive(self) -> None:
        try:
            data, passed, _, _ = socket.recv_fds(self.control, wire.MAX_ORDER, _MOST_PASSED)
        except ConnectionError:  # The owner is gone without having read what we sent.
            data, passed = b"", []
        if not data:
            sys.exit(0)
        message = json.loads(data)
        operation = message.pop("op")
        if operation == "create":
            self.nursery.ask(message["single_id"], lambda shell: self.create(message, passed, shell))
        elif operation == "destroy":
            self.destroy(message["id"])
        elif operation == "restack":
            self.send({"done": message["ticket"], **self.restack(message)})
        elif operation == "untouched":
            self.send({"done": message["ticket"], "untouched": self.untouched(message)})
        elif operation == "copy":
            self.help(lambda: self.copy(message), message["ticket"])
        elif operation == "release":
            self.release(message["cell"])

    # -- boxes

    def create(self, order: wire.Header, passed: list[int], shell: Shell | kernel.StepFailed) -> None:
        """Turns a shell into the box that was asked for. A failure is reported as the end of the box."""
        name, cell = order["id"], order["cell"]
        try:
            if isinstance(shell, kernel.StepFailed):
                raise shell
            self.boxes[name] = (shell, order)
            shell.at_end = lambda: self.ended(name)
            doors = passed[1:]
            if order["ports"]:
                network.open_gate(shell.network, doors.pop(0), order["ports"])
            rootfs.make_cell(self.world, cell, order["limits"]["disk_mb"])
            root = rootfs.make_root(self.world, order, cell, order["layers"])
            moves = rootfs.first_moves(self.world, order["base"])
            rootfs.put_root(root, shell.space, self.nursery.home, moves, seal=False)
            shell.order(order, [passed[0], *doors])
        except (OSError, kernel.StepFailed) as error:
            self.send({"gone": name, "error": str(error), "step": getattr(error, "step", "cell")})
            if self.boxes.pop(name, None) and isinstance(shell, Shell):
                shell.at_end = None
                shell.kill()
        finally:
            for number in passed:
                os.close(number)

    def destroy(self, name: str) -> None:
        if name in self.boxes:
            self.boxes[name][0].kill()
        else:
            self.send({"gone": name})

    def ended(self, name: str) -> None:
        del self.boxes[name]
        self.send({"gone": name})

    # -- frozen copies

    def untouched(self, message: wire.Header) -> bool:
        if message["id"] not in self.boxes:
            return False
        _, order = self.boxes[message["id"]]
        return rootfs.untouched(message["cell"], rootfs.lower_of(self.world, order, message["layers"])[0])

    def restack(self, message: wire.Header) -> wire.Header:
        """Seals what a box has written, and moves the box to a new cell on top of that."""
        name, cell = message["id"], message["cell"]
        if name not in self.boxes:
            return {"error": "the box has ended", "kind": "lost"}
        shell, order = self.boxes[name]
        for path in message["shared"]:
            if os.path.lexists(f"{message['layers'][0]}{path}"):
                return {"error": f"{path} is mapped for all to see", "kind": "busy"}
        moves = rootfs.later_moves(self.world, order["base"])
        try:
            rootfs.make_cell(self.world, cell, order["limits"]["disk_mb"])
            root = rootfs.make_root(self.world, order, cell, message["layers"])
        except (OSError, kernel.StepFailed) as error:
            return {"error": str(error), "kind": "failed"}
        try:
            rootfs.put_root(root, shell.space, self.nursery.home, moves, seal=True)
        except (OSError, kernel.StepFailed) as error:
            if getattr(error, "step", "") == rootfs.SEAL:
                return {"error": str(error), "kind": "busy"}
            shell.kill()  # The box may be in a half-made root.
            return {"error": str(error), "kind": "lost"}
        return {}

    def copy(self, message: wire.Header) -> wire.Header:
        if cell := message["cell"]:
            rootfs.make_cell(self.world, cell, 0)
        return seal.attempt(message["sources"], message["target"], named=not cell)

    def release(self, cell: str) -> None:
        if self.world.memory:
            self.left.append(cell)
        else:
            self.help(lambda: rootfs.remove_cell(self.world, cell), None)

    def help(self, work: Callable[[], wire.Header | None], ticket: int | None) -> None:
        """Runs slow work in a helper process, so that other boxes need not wait. With a ticket, the result is sent."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            theirs.send(json.dumps(work()).encode())
            os._exit(0)
        theirs.close()
        self.watch(ours.fileno(), lambda: self.helped(ticket, pid, ours))

    def helped(self, ticket: int | None, pid: int, ours: socket.socket) -> None:
        self.unwatch(ours.fileno())
        data = ours.recv(wire.MAX_ORDER)
        ours.close()
        os.waitpid(pid, 0)
        if ticket is not None:
            answer = json.loads(data) if data else {"error": "the copying process died", "kind": "lost"}
            self.send({"done": ticket, **answer})


def main(control_fd: int) -> None:
    control = socket.socket(fileno=control_fd)
    world = World(**json.loads(control.recv(wire.MAX_ORDER)))
    init.let_go_of_inheritance()
    for number in init.PYTHONS_SIGNALS:  # Ctrl-C is for the owner, which closes boxes in order.
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        alone = not world.wide
        programs = {kind: seccomp.build_program(kernel.MACHINE, root_alone=alone and kind == 0) for kind in KINDS}
        if world.subordinate:
            subordinate.enter(*world.subordinate, world.range_count)
        elif not world.wide:
            enter_user_namespace()
        enter_world(world)
        zygote = Zygote(control, world, programs)
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
