"""Pid 1 of a box: answers the owner's requests one frame at a time, until the owner's end of the socket closes.

It holds rights over the box only (its own user namespace), follows no instruction from inside the box, and its end ends
every process of the box.
"""

# Plain strings and descriptors instead of Path: this runs for every command of every box.
# ruff: noqa: PTH116

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from etude.sandbox.inside import files, kernel, processes, wire
from etude.sandbox.inside.command import Command, Start

USERS = {"agent": 1000, "grader": 1001}
WATCH_SECONDS = 0.05
_CHUNK = 1 << 18


def take_identity(*, second_user: bool) -> None:
    """Root of the box's user namespace where ids allow it, else the agent's own id; rights end at the box anyway."""
    uid = 0 if second_user else USERS["agent"]
    if second_user:
        os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # From here on files are the agent's business; pid 1 keeps only what it needs to end and observe processes.
    agent = USERS["agent"]
    kernel.act_as(agent, agent)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    os.setsid()


def run(control: socket.socket, message: dict[str, Any], program: bytes, *, second_user: bool) -> None:
    kernel.rename_process("init")
    # Pid 1 is deaf to every signal without a handler; Python's own handler for SIGINT would undo that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernel.install_filter(program)
    # An owner that leaves in the middle of an answer ends the box as one that leaves between two requests does.
    with suppress(OwnerGone):
        Init(control, message, second_user=second_user).serve()


class OwnerGone(Exception):
    """Nobody has the other end of the control socket open any more."""


class Init:
    def __init__(self, control: socket.socket, message: dict[str, Any], *, second_user: bool) -> None:
        self.control, self.second_user = control, second_user
        self.limits: dict[str, int] = message["limits"]
        self.env: dict[str, str] = message["env"]
        self.workdir: str = message["workdir"]
        self.poll = select.poll()
        self.commands: dict[int, Command] = {}
        self.by_pipe: dict[int, Command] = {}
        self.frames = wire.Unpacker()
        self.frozen = 0
        """Copies under way; what would change files waits in `deferred` until the last is done."""
        self.deferred: list[tuple[wire.Header, bytes]] = []
        self.proc_device = os.stat("/proc").st_dev
        control.setblocking(True)

    def serve(self) -> None:
        self.send({"ready": True})
        self.poll.register(self.control, select.POLLIN)
        control = self.control.fileno()
        while True:
            # The owner's requests come last: a new command may get the number of a pipe that this round has closed.
            for number, _ in sorted(self.poll.poll(self.patience()), key=lambda event: event[0] == control):
                if number == control:
                    for header, payload in self.frames.feed(self.receive()):
                        self.answer(header, payload)
                elif number in self.by_pipe:
                    self.advance(self.by_pipe[number], number)
            self.watch()

    def send(self, header: wire.Header, payload: bytes = b"") -> None:
        try:
            self.control.sendall(wire.pack(header, payload))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise OwnerGone from error

    def receive(self) -> bytes:
        try:
            data = self.control.recv(_CHUNK)
        except ConnectionResetError as error:
            raise OwnerGone from error
        if not data:
            raise OwnerGone
        return data

    # -- requests

    def answer(self, header: wire.Header, payload: bytes) -> None:
        ticket = header["ticket"]
        if self.frozen and header["op"] in ("exec", "write"):
            self.deferred.append((header, payload))
            return
        try:
            if header["op"] == "exec":
                self.start(header, payload)
                return
            if header["op"] == "cancel":
                if header["command"] in self.commands:
                    self.commands[header["command"]].kill("cancelled")
                return
            reply, body = self.perform(header, payload)
            self.send({"ticket": ticket, **reply}, body)
        except files.Refused as refusal:
            self.send({"ticket": ticket, "error": str(refusal), "kind": "refused"})
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            kind = "disk_full" if full else errno.errorcode.get(error.errno or 0, "EIO")
            self.send({"ticket": ticket, "error": error.strerror or str(error), "kind": kind})

    def perform(self, header: wire.Header, payload: bytes) -> tuple[wire.Header, bytes]:
        operation = header["op"]
        if operation == "read":
            return {}, files.read(self.workdir, header["path"], header["max_bytes"], self.proc_device)
        if operation == "write":
            if len(payload) > self.limits["file_mb"] << 20:
                raise files.Refused(f"{len(payload)} bytes for {header['path']}; a file has at most file_mb = "
                                    f"{self.limits['file_mb']} MiB")  # fmt: skip
            files.write(self.workdir, header["path"], payload, executable=header["executable"], proc=self.proc_device)
        elif operation == "list":
            return {}, "\0".join(files.list_below(self.workdir, header["path"])).encode("utf-8", "surrogateescape")
        elif operation == "freeze":
            return {"writers": self.freeze(kill=header["kill"])}, b""
        elif operation == "thaw":
            self.thaw()
        return {}, b""

    def freeze(self, *, kill: bool) -> list[str]:
        """Stops everything and returns who was writing; if anyone was, everything goes on at once."""
        self.frozen += 1
        if kill:
            processes.signal_all(signal.SIGKILL)
            processes.wait_until_dead()
            return []
        processes.signal_all(signal.SIGSTOP)
        if self.second_user:
            kernel.act_as(0, 0)
        writers = processes.find_writers() if processes.wait_until_stopped() else ["a process that does not stop"]
        if self.second_user:
            kernel.act_as(USERS["agent"], USERS["agent"])
        if writers:
            self.thaw()
        return writers

    def thaw(self) -> None:
        self.frozen -= 1
        if self.frozen:
            return
        processes.signal_all(signal.SIGCONT)
        waiting, self.deferred = self.deferred, []
        for header, payload in waiting:
            self.answer(header, payload)

    # -- commands

    def start(self, header: wire.Header, stdin: bytes) -> None:
        start = Start(
            argv=header["argv"],
            env={**self.env, **header["env"]},
            cwd=header["cwd"] or self.workdir,
            uid=USERS[header["user"]] if self.second_user else None,
            stdin=stdin,
            timeout=header["timeout"],
            limits=self.limits,
        )
        command = Command(header["ticket"], start)
        self.commands[command.ticket] = command
        for number in command.pipes():
            self.by_pipe[number] = command
            self.poll.register(number, select.POLLIN)

    def advance(self, command: Command, number: int) -> None:
        if number == command.pidfd:
            self.finish(command)
        elif not command.take_output(number):
            self.poll.unregister(number)
            del self.by_pipe[number]

    def finish(self, command: Command) -> None:
        """The command itself has ended: end what it left behind, collect the rest of its output, answer."""
        del self.commands[command.ticket]
        status = command.reap()
        if self.commands:
            others = {other.pid for other in self.commands.values()}
            processes.kill_marked(command.mark, others)
            processes.collect_orphans(others)
        else:
            processes.signal_all(signal.SIGKILL)
            processes.collect_all()
        for number in [number for number, owner in self.by_pipe.items() if owner is command]:
            self.poll.unregister(number)
            del self.by_pipe[number]
        header, payload = command.result(status)
        self.send(header, payload)

    def patience(self) -> int | None:
        """Milliseconds until someone must look: a deadline, or the next glance at memory and CPU time."""
        if not self.commands:
            return None
        return max(0, min(int(command.next_look() * 1000) + 1 for command in self.commands.values()))

    def watch(self) -> None:
        due = [command for command in self.commands.values() if command.next_look() <= 0]
        for command in due:
            if command.expired():
                command.kill("time")
        if due:
            self.check_usage()
            for command in due:
                command.looked(WATCH_SECONDS)

    def check_usage(self) -> None:
        usage = processes.measure()
        memory = sum(process.memory for process in usage)
        for command in self.commands.values():
            own = [process for process in usage if process.mark == command.mark]
            if sum(process.cpu_seconds for process in own) > self.limits["cpu_seconds"]:
                command.kill("cpu")
        if memory > self.limits["memory_mb"] << 20 and self.commands:
            hungriest = max(
                self.commands.values(),
                key=lambda command: sum(process.memory for process in usage if process.mark == command.mark),
            )
            hungriest.kill("memory")
