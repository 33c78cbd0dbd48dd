"""Runs commands on the user's own machine, without a box: single commands, or persistent terminals.

There is no isolation: a command can do everything that the user can. The only precaution is that commands inherit few
environment variables, since others may contain keys. A command and its children are killed when the command is stopped,
when its time limit is reached, and when the workspace is closed; a child that started its own session may survive.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import struct
import tempfile
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

from etude.harness.workspaces.workspace import AGENT_ENV
from etude.sandbox.contract import ExecResult, Poll, RequestRefused, Terminal

_INHERITED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ", "TMPDIR", "VIRTUAL_ENV"}
)
"""Variables that commands inherit, besides LC_*. An allow list, because a variable with a key can have any name."""
_MAX_OUTPUT_BYTES = 1_000_000
"""Maximum size of each output stream of a single command; the rest is cut off."""
_KEPT_BYTES = 4_000_000
"""Maximum number of unread output bytes of a terminal; the oldest are dropped."""
_ON_TERMINAL = 'exec "$@" <"$0" >"$0" 2>&1'
"""Shell script that runs "$@" on the terminal $0. The shell is a session leader, so the terminal that it opens becomes
its controlling terminal."""


async def host_exec(command: str, folder: Path, timeout: float, told: bytes | None = None) -> ExecResult:
    """Run one shell command in a folder on the host. The command is killed on timeout and on cancellation. `told`, if
    given, replaces the folder's path in the output."""
    started = time.monotonic()
    # Files instead of pipes, because a pipe stays open as long as a background process of the command runs.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=folder,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            _end_tree(process.pid)
        code = await process.wait()
        truncated = any(os.fstat(stream.fileno()).st_size > _MAX_OUTPUT_BYTES for stream in (stdout, stderr))
        out, err = (_said(stream) for stream in (stdout, stderr))
        if told is not None:
            out, err = (said.replace(bytes(folder), told) for said in (out, err))
        return ExecResult(128 - code if code < 0 else code, out, err, time.monotonic() - started, timed_out, truncated)


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}
    return {**inherited, **AGENT_ENV}


class HostTerminals:
    """Opens terminals in the user's folder. `scratch` is a temporary folder, for example for scripts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.scratch = Path(tempfile.mkdtemp(prefix="etude-here-"))
        self._running: list[HostProcess] = []

    async def start(
        self, command: list[str], *, timeout: float, cwd: str | None, env: dict[str, str], terminal: Terminal
    ) -> HostProcess:
        process = await HostProcess.start(command, Path(cwd or self._folder), {**environment(), **env}, terminal)
        process.end_after(timeout)
        self._running.append(process)
        return process

    async def write_file(self, path: str, data: bytes) -> None:
        target = self.scratch / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def close(self) -> None:
        for process in self._running:
            await process.kill()
            process.close()
        await asyncio.to_thread(shutil.rmtree, self.scratch, True)


class HostProcess:
    """A command on its own pseudo-terminal, with the interface of a box's Process."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.id = process.pid
        self._process = process
        self._master = master
        self._said = bytearray()
        self._skipped = 0
        self._news = asyncio.Event()
        self._code: int | None = None
        self._clock: asyncio.TimerHandle | None = None
        asyncio.get_running_loop().add_reader(master, self._hear)
        self._task = asyncio.create_task(self._attend())

    @classmethod
    async def start(cls, command: list[str], folder: Path, env: Mapping[str, str], terminal: Terminal) -> HostProcess:
        master, slave = os.openpty()
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", terminal.rows, terminal.columns, 0, 0))
            os.set_blocking(master, False)
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", _ON_TERMINAL, os.ttyname(slave), *command,
                cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return cls(process, master)

    def end_after(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().call_later(seconds, _end_tree, self._process.pid)

    def _hear(self) -> None:
        try:
            data = os.read(self._master, 1 << 16)
        except BlockingIOError:
            return
        except OSError:  # on Linux: no process has the terminal open any more
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        self._said += data
        if (excess := len(self._said) - _KEPT_BYTES) > 0:
            del self._said[:excess]
            self._skipped += excess
        self._news.set()

    async def _attend(self) -> None:
        """Wait for the end of the command, kill its process group and read the rest of its output."""
        code = await self._process.wait()
        # The group is killed at once, because its id may be reused later.
        _end_group(self._process.pid)
        # The command's output is complete now. The terminal's end is not awaited, since background processes may keep
        # it open.
        self._hear()
        self._code = 128 - code if code < 0 else code
        if self._clock is not None:
            self._clock.cancel()
        self._news.set()

    async def poll(self, *, wait: float = 0.0) -> Poll:
        if not self._said and self._code is None and wait > 0:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()
        taken, skipped = bytes(self._said), self._skipped
        self._said.clear()
        self._skipped = 0
        return Poll(taken, skipped, self._code, "")

    async def write(self, data: bytes) -> None:
        if self._code is not None:
            raise RequestRefused("the command has ended")
        try:
            written = os.write(self._master, data)
        except OSError as error:
            raise RequestRefused(f"the command does not accept input: {error.strerror}") from error
        if written < len(data):
            raise RequestRefused(f"the command accepted only {written} of {len(data)} bytes of input")

    async def close_stdin(self) -> None:
        await self.write(b"\x04")

    async def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def kill(self) -> None:
        if self._code is None:
            _end_tree(self._process.pid)
        await self._task

    def close(self) -> None:
        """Close the terminal. The command must have ended."""
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)


def _said(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read(_MAX_OUTPUT_BYTES)


def _end_tree(pid: int) -> None:
    """Kill a process and its children, also those in other process groups."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    _end_group(pid)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
