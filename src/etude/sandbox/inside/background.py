"""A background command: its output waits in a ring buffer until the owner polls, its input in a queue until it is read.

Both are bounded. Output bytes are numbered from 0 and stay until the owner says that it has them, so an answer that was
lost on its way is given again. When the command ends, the owner is sent what is left, and nothing of it stays here.
"""

# Plain strings and descriptors instead of Path, since this runs for every command of every box.

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable

from etude.sandbox.inside.command import Command, wide_pipe
from etude.sandbox.inside.events import Events
from etude.sandbox.inside.files import Refused
from etude.sandbox.inside.spawn import Launch, Spawner
from etude.sandbox.inside.wire import Header

Tell = Callable[[Header, bytes], None]
MOST_WAITING = 1 << 20
"""Most bytes of input that may wait for a command to read them."""


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
        """Drops the bytes before this number: the owner has them, or they are too old."""
        count = min(before - self._first, len(self._bytes))
        if count > 0:
            del self._bytes[:count]
            self._first += count

    @property
    def end(self) -> int:
        return self._first + len(self._bytes)

    def take(self) -> tuple[int, bytes]:
        """Returns the number of the first byte still here, and all bytes from there on."""
        return self._first, bytes(self._bytes)


class Waiter:
    def __init__(self, ticket: int, has: int, until: float) -> None:
        self.ticket, self.has, self.until = ticket, has, until
        """A pending poll: `has` is how many bytes the owner has, `until` when it must be answered."""


class Background(Command):
    def __init__(self, number: int, launch: Launch, events: Events, tell: Tell, room: int) -> None:
        super().__init__(number, launch, events)
        self._tell = tell
        self._ring = Ring(room)
        self._waiters: list[Waiter] = []
        self._mourners: list[int] = []
        """Tickets of kill requests, which are answered when the command has ended."""
        self._input = bytearray()
        self._output_at = self._input_at = self._slave = -1
        self._no_more = False
        """Close the input once the queue is empty."""

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

    def heard(self, number: int, data: bytes) -> None:
        self._ring.append(data)
        self._answer_waiters(lambda waiter: True)

    def complain(self, line: bytes) -> None:
        self._ring.append(line)

    def poll(self, waiter: Waiter) -> None:
        self._ring.forget(waiter.has)
        if self._ring.end > waiter.has or waiter.until <= time.monotonic():
            self._reply(waiter)
        else:
            self._waiters.append(waiter)

    def next_look(self) -> float:
        now = time.monotonic()
        return min([super().next_look(), *(waiter.until - now for waiter in self._waiters)])

    def let_waiters_go(self) -> None:
        """Answers the polls whose time is up."""
        now = time.monotonic()
        self._answer_waiters(lambda waiter: waiter.until <= now)

    def drop_waiter(self, ticket: int) -> None:
        self._waiters = [waiter for waiter in self._waiters if waiter.ticket != ticket]

    def _answer_waiters(self, due: Callable[[Waiter], bool]) -> None:
        chosen = [waiter for waiter in self._waiters if due(waiter)]
        if chosen:
            self._waiters = [waiter for waiter in self._waiters if waiter not in chosen]
        for waiter in chosen:
            self._reply(waiter)

    def _reply(self, waiter: Waiter) -> None:
        first, data = self._ring.take()
        self._tell({"ticket": waiter.ticket, "first": first}, data)

    # -- input

    def feed(self, data: bytes) -> None:
        if self._no_more or self._input_at < 0:
            raise Refused("its input is closed")
        if len(self._input) + len(data) > MOST_WAITING:
            raise Refused(f"{len(self._input)} bytes wait for it to read them; with these {len(data)} they are more "
                          f"than {MOST_WAITING}: write less at a time, or later")  # fmt: skip
        self._input += data
        self._pass_on()

    def close_input(self) -> None:
        if self._no_more or self._input_at < 0:
            return
        if self.has_terminal:
            self.feed(termios.tcgetattr(self._slave)[6][termios.VEOF])
        else:
            self._no_more = True
            self._pass_on()

    def _pass_on(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self._input_at, self._input)]
        except BlockingIOError:
            self.events.write(self._input_at, self._pass_on)
            return
        except OSError:  # The command has closed its input.
            self._input.clear()
            self._no_more = True
        self.events.done_writing(self._input_at)
        if self._no_more and not self.has_terminal:
            self._close_input_pipe()

    def _close_input_pipe(self) -> None:
        if self._input_at >= 0:
            self.events.forget(self._input_at)
            os.close(self._input_at)
            self._input_at = -1

    def resize(self, rows: int, columns: int) -> None:
        if not self.has_terminal:
            raise Refused("it has no terminal")
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # -- the end

    def kill_for(self, ticket: int) -> None:
        self._mourners.append(ticket)
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
        self._tell({"ticket": self.number, "first": first, "end": code, "limit": self.limit}, data)
        for ticket in (*(waiter.ticket for waiter in self._waiters), *self._mourners):
            self._tell({"ticket": ticket, "ended": True}, b"")
