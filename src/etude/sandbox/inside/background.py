"""A background command in pid 1 of a box: a ring buffer keeps its output until the owner process polls, and a queue
keeps its input until the command reads it.

Both have a maximum size. Output bytes are numbered from 0 and stay until the owner confirms that it has received them,
so a lost answer can be repeated. When the command ends, pid 1 sends the remaining output to the owner and keeps
nothing.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable

from etude.sandbox.inside.command import Command, Send, wide_pipe
from etude.sandbox.inside.events import Events
from etude.sandbox.inside.files import Refused
from etude.sandbox.inside.spawn import Launch, Spawner

MAX_QUEUED_INPUT = 1 << 20
"""Maximum number of bytes that wait until the command reads them."""


class Ring:
    """The last `size` bytes of a stream whose bytes are numbered from 0."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._first = 0
        self._bytes = bytearray()

    def append(self, data: bytes) -> None:
        self._bytes += data
        self.forget(self._first + len(self._bytes) - self._size)

    def forget(self, before: int) -> None:
        count = min(before - self._first, len(self._bytes))
        if count > 0:
            del self._bytes[:count]
            self._first += count

    @property
    def end(self) -> int:
        return self._first + len(self._bytes)

    def take(self) -> tuple[int, bytes]:
        """Return the number of the first byte in the buffer, and the bytes, which stay in the buffer."""
        return self._first, bytes(self._bytes)


class PendingPoll:
    """A poll that waits for output. Its sender has received the first `has` bytes; it is answered by the monotonic time
    `until`."""

    def __init__(self, ticket: int, has: int, until: float) -> None:
        self.ticket, self.has, self.until = ticket, has, until


class Background(Command):
    def __init__(self, number: int, launch: Launch, events: Events, send: Send, capacity: int) -> None:
        super().__init__(number, launch, events, send)
        self._ring = Ring(capacity)
        self._polls: list[PendingPoll] = []
        self._kill_waiters: list[int] = []
        """Tickets of kill requests, which are answered when the command has ended."""
        self._input = bytearray()
        self._output_at = self._input_at = self._slave = -1
        self._closing = False
        """Whether to close the command's input as soon as all queued input is written to it."""

    @property
    def has_terminal(self) -> bool:
        return self._slave >= 0

    def start(self, launch: Launch, spawner: Spawner, size: tuple[int, int] | None) -> None:
        if size is None:
            self._start_on_pipes(launch, spawner)
        else:
            self._start_on_terminal(launch, spawner, size)
        self.events.read(self._output_at, lambda: self.take_output(self._output_at))

    def _start_on_pipes(self, launch: Launch, spawner: Spawner) -> None:
        child: list[int] = []
        try:
            self._output_at, output = wide_pipe()
            child.append(output)
            stdin, self._input_at = os.pipe()
            child.append(stdin)
            os.set_blocking(self._input_at, False)
            self.begin(spawner, launch, (stdin, output, output))
        finally:
            for number in child:
                os.close(number)

    def _start_on_terminal(self, launch: Launch, spawner: Spawner, size: tuple[int, int]) -> None:
        # The slave end stays open here too: a program that closes its terminal for a moment must not end the terminal.
        self._output_at, self._slave = spawner.open_terminal(launch.user)
        self._input_at = self._output_at
        os.set_blocking(self._output_at, False)
        self.resize(*size)
        self.begin(spawner, launch, os.ttyname(self._slave))

    # -- output

    def add_output(self, number: int, data: bytes) -> None:
        self._ring.append(data)
        self._answer_polls(lambda poll: True)

    def add_error(self, line: bytes) -> None:
        self._ring.append(line)

    def poll(self, poll: PendingPoll) -> None:
        self._ring.forget(poll.has)
        if self._ring.end > poll.has or poll.until <= time.monotonic():
            self._reply(poll)
        else:
            self._polls.append(poll)

    def seconds_to_check(self) -> float:
        now = time.monotonic()
        return min([super().seconds_to_check(), *(poll.until - now for poll in self._polls)])

    def answer_expired_polls(self) -> None:
        now = time.monotonic()
        self._answer_polls(lambda poll: poll.until <= now)

    def drop_poll(self, ticket: int) -> None:
        self._polls = [poll for poll in self._polls if poll.ticket != ticket]

    def _answer_polls(self, due: Callable[[PendingPoll], bool]) -> None:
        chosen = [poll for poll in self._polls if due(poll)]
        if chosen:
            self._polls = [poll for poll in self._polls if poll not in chosen]
        for poll in chosen:
            self._reply(poll)

    def _reply(self, poll: PendingPoll) -> None:
        first, data = self._ring.take()
        self.send({"ticket": poll.ticket, "first": first}, data)

    # -- input

    def feed(self, data: bytes) -> None:
        if self._closing or self._input_at < 0:
            raise Refused("the command's input is closed")
        if len(self._input) + len(data) > MAX_QUEUED_INPUT:
            raise Refused(
                f"the command has {len(self._input)} bytes of input still to read; with {len(data)} more, it would be "
                f"more than {MAX_QUEUED_INPUT}: write less at a time, or later"
            )
        self._input += data
        self._write_input()

    def close_input(self) -> None:
        if self._closing or self._input_at < 0:
            return
        if self.has_terminal:
            self.feed(termios.tcgetattr(self._slave)[6][termios.VEOF])
        else:
            self._closing = True
            self._write_input()

    def _write_input(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self._input_at, self._input)]
        except BlockingIOError:
            self.events.write(self._input_at, self._write_input)
            return
        except OSError:  # The command has closed its input.
            self._input.clear()
            self._closing = True
        self.events.done_writing(self._input_at)
        if self._closing and not self.has_terminal:
            self._close_input_pipe()

    def _close_input_pipe(self) -> None:
        if self._input_at >= 0:
            self.events.forget(self._input_at)
            os.close(self._input_at)
            self._input_at = -1

    def resize(self, rows: int, columns: int) -> None:
        if not self.has_terminal:
            raise Refused("the command has no terminal; start it with one to set its size")
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # -- the end

    def kill_for(self, ticket: int) -> None:
        self._kill_waiters.append(ticket)
        self.kill("")

    def release(self) -> None:
        if not self.has_terminal:
            self._close_input_pipe()
        if self._output_at >= 0:
            self.take_rest(self._output_at)
        if self.has_terminal:
            os.close(self._slave)
        super().release()

    def answer(self, code: int) -> None:
        first, data = self._ring.take()
        self.send({"ticket": self.number, "first": first, "end": code, "limit": self.limit}, data)
        for ticket in (*(poll.ticket for poll in self._polls), *self._kill_waiters):
            self.send({"ticket": ticket, "ended": True}, b"")
