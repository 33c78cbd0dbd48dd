"""The zygote: one single-threaded process per backend from which all boxes are cloned.

It lives as long as its owner, the process that uses the backend: it ends when the owner ends or closes its end of the
socket, and every box ends with it. Requests are small JSON messages on a SOCK_SEQPACKET socket. `create` also carries
descriptors: the box's end of the socket between box and owner, and the entry files of the box's cgroups (files that a
process writes to in order to enter). For a box with network access, there is also the socket over which the zygote
sends the owner the listening sockets of the box's network.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

from etude.sandbox.inside import (
    init,
    kernel,
    kernel_shares,
    network,
    rootfs,
    seal,
    seccomp,
    subordinate,
    wire,
    zygote_root,
)
from etude.sandbox.inside.box_ids import IdPool
from etude.sandbox.inside.box_spawner import SINGLE_IDS, BoxSpawner
from etude.sandbox.inside.events import Events
from etude.sandbox.inside.prepared_box import Kind, PreparedBox
from etude.sandbox.inside.views import Views
from etude.sandbox.inside.zygote_root import ZygoteSettings

_MAX_PASSED = 8
_MAX_VIEWS = 256
"""Maximum number of views (mounts that show one box's folders, see views.py) that stay mounted until the zygote is
idle. With more of them, they are unmounted at once."""
_MAX_CELLS_TO_REMOVE = 64
"""Maximum number of cells (folders that boxes have written to) whose removal waits until the zygote is idle. Removal is
slow, because unmounting a cell waits for all CPUs."""


class Zygote:
    def __init__(
        self, control: socket.socket, settings: ZygoteSettings, programs: dict[int, bytes], pool: IdPool, views: Views
    ) -> None:
        self.control, self.settings = control, settings
        self.boxes: dict[str, tuple[PreparedBox, wire.Header]] = {}
        """Maps a box id to the box's process and to the request ("order") by which the owner asked for the box."""
        self.cells_to_remove: list[str] = []
        self.events = Events()
        self.views = views
        self.spawner = BoxSpawner(settings, programs, pool, self.events.read, self.events.forget)

    def send(self, message: wire.Header) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            sys.exit(0)  # The owner has ended, so the zygote and every box end too.

    def serve(self) -> None:
        owner = os.pidfd_open(os.getppid())
        self.events.read(owner, lambda: sys.exit(0))
        self.events.read(self.control.fileno(), self.receive)
        while True:
            # Spare boxes and unmounting wait until there are no requests.
            idle_work = self.spawner.needs_spare or self.cells_to_remove or self.views.count
            busy = self.events.wait(0 if idle_work else None)
            if not busy and self.spawner.needs_spare:
                self.spawner.make_spare()
            elif self.views.count and (not busy or self.views.count > _MAX_VIEWS):
                self.views.unmount()
            elif self.cells_to_remove and (not busy or len(self.cells_to_remove) > _MAX_CELLS_TO_REMOVE):
                rootfs.remove_cell(self.settings, self.cells_to_remove.pop(0))

    def receive(self) -> None:
        try:
            data, passed, _, _ = socket.recv_fds(self.control, wire.MAX_ORDER, _MAX_PASSED)
        except ConnectionError:  # The owner ended without reading our messages.
            data, passed = b"", []
        if not data:
            sys.exit(0)
        message = json.loads(data)
        operation = message.pop("op")
        if operation == "create":
            kind: Kind = (message["single_id"], message["limits"]["processes"])
            self.spawner.request(kind, lambda box: self.create(message, passed, box))
        elif operation == "destroy":
            self.destroy(message["id"])
        elif operation == "forbid_writes":
            self.send({"done": message["ticket"], **self.forbid_writes(message["id"], forbidden=message["forbidden"])})
        elif operation == "restack":
            self.send({"done": message["ticket"], **self.restack(message)})
        elif operation == "untouched":
            self.send({"done": message["ticket"], "untouched": self.untouched(message)})
        elif operation == "copy":
            self.run_in_helper(lambda: self.copy(message), message["ticket"])
        elif operation == "release":
            self.release(message["cell"])

    # -- boxes

    def create(self, order: wire.Header, passed: list[int], box: PreparedBox | kernel.StepFailed) -> None:
        """Turn the prepared `box` into the one that `order` describes, and close the descriptors that came with the
        request. If there is no box or a step fails, tell the owner why."""
        name, cell = order["id"], order["cell"]
        try:
            if isinstance(box, kernel.StepFailed):
                raise box
            self.boxes[name] = (box, order)
            box.at_end = lambda: self.box_ended(name)
            cgroup_entries = passed[1:]
            if order["ports"]:
                network.open_gate(box.network_namespace, cgroup_entries.pop(0), order["ports"])
            rootfs.make_cell(self.settings, cell, order["limits"]["disk_mb"])
            root = rootfs.make_root(self.settings, order, cell, order["layers"], box.ids, self.views)
            moves = rootfs.mounts_for_first_root(self.settings, order["base"])
            rootfs.replace_root(
                root,
                box.mount_namespace,
                self.spawner.own_namespace,
                moves,
                seal=False,
                user_namespace=box.user_namespace,
            )
            box.order(order, [passed[0], *cgroup_entries])
        except (OSError, kernel.StepFailed) as error:
            number = error.number if isinstance(error, kernel.StepFailed) else error.errno
            self.send({"gone": name, "error": str(error), "step": getattr(error, "step", "cell"), "number": number})
            if self.boxes.pop(name, None) and isinstance(box, PreparedBox):
                box.at_end = None
                box.kill()
        finally:
            for number in passed:
                os.close(number)

    def destroy(self, name: str) -> None:
        if name in self.boxes:
            self.boxes[name][0].kill()
        else:
            self.send({"gone": name})

    def box_ended(self, name: str) -> None:
        del self.boxes[name]
        self.send({"gone": name})

    # -- frozen copies

    def untouched(self, message: wire.Header) -> bool:
        if message["id"] not in self.boxes:
            return False
        _, order = self.boxes[message["id"]]
        return rootfs.untouched(message["cell"], rootfs.lower_layers(self.settings, order, message["layers"])[0])

    def forbid_writes(self, name: str, *, forbidden: bool) -> wire.Header:
        """Make all files of a box read-only or, if not `forbidden`, writable again. Return {}, or `error` with `kind`:
        "busy" if a process has a file open for writing, "lost" if the box has ended or the step failed otherwise."""
        if name not in self.boxes:
            return {"error": "the box has ended", "kind": "lost"}
        box, _ = self.boxes[name]
        try:
            rootfs.forbid_writes(box.mount_namespace, self.spawner.own_namespace, forbidden=forbidden)
        except kernel.StepFailed as error:
            return {"error": str(error), "kind": "busy" if error.number == errno.EBUSY else "lost"}
        return {}

    def restack(self, message: wire.Header) -> wire.Header:
        """Make the layer that a box has written read-only, and put an empty cell (a writable folder) on top of it.
        Return {}, or `error` with `kind`: "busy" if processes prevent this, "refused" if the box has replaced a folder
        that each box needs, "failed" if the box goes on as before, "lost" if the box has ended."""
        name, cell = message["id"], message["cell"]
        if name not in self.boxes:
            return {"error": "the box has ended", "kind": "lost"}
        box, order = self.boxes[name]
        for path in message["shared"]:
            if rootfs.holds(message["layers"][0], path):
                return {"error": f"{path} is mapped shared by a process", "kind": "busy"}
        moves = [(target, target) for _, target in rootfs.mounts_for_first_root(self.settings, order["base"])]
        try:
            rootfs.make_cell(self.settings, cell, order["limits"]["disk_mb"])
            root = rootfs.make_root(self.settings, order, cell, message["layers"], box.ids, self.views)
        except (OSError, kernel.StepFailed) as error:
            replaced = getattr(error, "step", "").startswith(kernel.IMAGE)
            return {"error": str(error), "kind": "refused" if replaced else "failed"}
        try:
            rootfs.replace_root(root, box.mount_namespace, self.spawner.own_namespace, moves, seal=True)
        except (OSError, kernel.StepFailed) as error:
            if getattr(error, "step", "") == rootfs.SEAL:
                return {"error": str(error), "kind": "busy"}
            box.kill()  # The box's root may be incomplete.
            return {"error": str(error), "kind": "lost"}
        return {}

    def copy(self, message: wire.Header) -> wire.Header:
        """Merge the overlay folders `sources` into the folder `target`. If the request names a `cell` (the folder for
        what one box writes), that is created first, and contains `target`. Runs in a helper process."""
        cell = message["cell"]
        prepare = (lambda: rootfs.make_cell(self.settings, cell, 0)) if cell else (lambda: None)
        return seal.copy_and_report(message["sources"], message["target"], named=not cell, prepare=prepare)

    def release(self, cell: str) -> None:
        """Remove a cell, the folder with what one box wrote. A cell in memory (a tmpfs) is removed when the zygote is
        idle, a cell on disk at once in a helper process."""
        if self.settings.memory:
            self.cells_to_remove.append(cell)
        else:
            self.run_in_helper(lambda: rootfs.remove_cell(self.settings, cell), None)

    def run_in_helper(self, work: Callable[[], wire.Header | None], ticket: int | None) -> None:
        """Run slow work in a forked process, so that other boxes need not wait. Its result answers the owner's request
        with the number `ticket`; with None, the result is dropped."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            theirs.send(json.dumps(work()).encode())
            os._exit(0)
        theirs.close()
        self.events.read(ours.fileno(), lambda: self.helper_ended(ticket, pid, ours))

    def helper_ended(self, ticket: int | None, pid: int, ours: socket.socket) -> None:
        self.events.forget(ours.fileno())
        data = ours.recv(wire.MAX_ORDER)
        ours.close()
        os.waitpid(pid, 0)
        if ticket is not None:
            answer = json.loads(data) if data else {"error": "the copying process died", "kind": "lost"}
            self.send({"done": ticket, **answer})


def main(control_fd: int) -> None:
    """Run the zygote. The first message on the socket holds the settings; the first answer says whether the zygote is
    ready, or which step failed."""
    control = socket.socket(fileno=control_fd)
    settings = ZygoteSettings(**json.loads(control.recv(wire.MAX_ORDER)))
    init.reset_inherited_state()
    for number in init.PYTHON_SIGNALS:  # Ctrl-C is meant for the owner, which closes all boxes.
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        alone = not settings.many_ids
        programs = {
            single_id: seccomp.build_program(kernel.MACHINE, root_alone=alone and single_id == 0)
            for single_id in SINGLE_IDS
        }
        if settings.subordinate:
            subordinate.enter(*settings.subordinate, settings.range_count)
        elif not settings.many_ids:
            zygote_root.enter_user_namespace()
        if settings.subordinate or not settings.many_ids:
            kernel_shares.limit_zygote()
        pool, views = IdPool(settings), Views()
        zygote_root.make_stage(settings)
        own_ids = pool.own_ranges = rootfs.can_show_ids(settings, views, zygote_root.trial_cell(settings))
        zygote_root.fill_and_enter_stage(settings, own_ranges=own_ids)
        zygote = Zygote(control, settings, programs, pool, views)
    except (kernel.StepFailed, OSError, KeyError) as error:
        step = getattr(error, "step", "machine" if isinstance(error, KeyError) else "start")
        control.send(json.dumps({"ready": False, "error": str(error), "step": step}).encode())
        return
    kernel.rename_process("etude-sandbox")
    gc.collect()
    gc.disable()
    gc.freeze()
    zygote.send({"ready": True, "own_ids": own_ids})
    zygote.serve()
