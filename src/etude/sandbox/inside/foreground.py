"""A command whose caller waits for its end. Pid 1 collects its stdout and stderr up to a limit, or streams them, and
sends one answer at the end."""

from __future__ import annotations

import os
import time

from etude.sandbox.inside import processes
from etude.sandbox.inside.command import Command, Send, wide_pipe
from etude.sandbox.inside.events import Events
from etude.sandbox.inside.spawn import Launch, Spawner


class Foreground(Command):
    """A command whose caller gets one answer when it ends. At most `capacity` bytes of stdout, and as many of stderr,
    are passed on: as they arrive if `stream` is set, otherwise in the answer."""

    def __init__(self, number: int, launch: Launch, events: Events, send: Send, *, capacity: int, stream: bool) -> None:
        super().__init__(number, launch, events, send)
        self._stream = stream
        self._kept = {1: bytearray(), 2: bytearray()}
        self._capacity = {1: capacity, 2: capacity}
        self._names: dict[int, int] = {}
        """Output pipe -> 1 (stdout) or 2 (stderr)."""
        self._truncated = False
        self._reaped_cpu_before = processes.reaped_cpu_seconds()

    def start(self, launch: Launch, spawner: Spawner, stdin: bytes) -> None:
        child: list[int] = []
        try:
            for name in (1, 2):
                reading, writing = wide_pipe()
                self._names[reading] = name
                child.append(writing)
            if stdin:
                child.append(_memfd_with(stdin))
            self.begin(spawner, launch, (child[2] if stdin else None, child[0], child[1]))
        finally:
            for number in child:
                os.close(number)
        for number in self._names:
            self.events.read(number, lambda number=number: self.take_output(number))  # type: ignore[misc]

    def add_output(self, number: int, data: bytes) -> None:
        self._keep(self._names[number], data)

    def add_error(self, line: bytes) -> None:
        self._keep(2, line)

    def _keep(self, name: int, data: bytes) -> None:
        if len(data) > self._capacity[name]:
            self._truncated = True
            data = data[: self._capacity[name]]
        self._capacity[name] -= len(data)
        if not self._stream:
            self._kept[name] += data
        elif data:
            self.send({"ticket": self.number, "stream": name}, data)

    def release(self) -> None:
        for number in self._names:
            self.take_rest(number)
        super().release()

    def answer(self, code: int) -> None:
        out, err = self._kept.values()
        header = {
            "ticket": self.number,
            "code": code,
            "seconds": time.monotonic() - self.began,
            "cpu_seconds": processes.reaped_cpu_seconds() - self._reaped_cpu_before,
            "limit": self.limit,
            "truncated": self._truncated,
            "split": len(out),
        }
        self.send(header, bytes(out + err))


def _memfd_with(data: bytes) -> int:
    """Write a command's stdin to a memfd. Unlike a pipe, this never blocks pid 1 if the command does not read it."""
    number = os.memfd_create("stdin")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(number, view) :]
        os.lseek(number, 0, os.SEEK_SET)
    except OSError:
        os.close(number)
        raise
    return number
