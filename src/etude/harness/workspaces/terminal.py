"""The agent's terminal: a persistent shell, and background jobs.

One shell runs the commands one after another, so that its folder and variables persist. No command can hang it: one
that is not done when its wait is over becomes a job, which can be polled, written to or killed, and the next command
gets a fresh shell in the same folder. Terminal output (colours, progress bars, rewritten lines) is reduced to plain
text.

How the end of a command is detected: the shell is a small driver that sources one file per command and then prints a
marker with a random key, which no command prints by chance.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from etude.sandbox.contract import Process, RequestRefused, SandboxError, SandboxUnavailable, Terminal
from etude.sandbox.cpu_share import ShareMeter

TAMED = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "LESS": "-dFX",
    "SYSTEMD_PAGER": "",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_NO_INPUT": "1",
    "NPM_CONFIG_PROGRESS": "false",
    "DEBIAN_FRONTEND": "noninteractive",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
}
"""Environment variables that tell programs not to page, paint or prompt."""
SIZE = Terminal(rows=50, columns=200)
JOB_SECONDS = 6 * 3600.0
"""A job is killed after this long, if its box lives that long."""
OPEN_SECONDS = 30.0
KEPT_BYTES = 4_000_000
"""Unread output kept per command; beyond this the oldest bytes are dropped."""
FOLDER = "/tmp/etude-shell"

_DRIVER = r"""
stty -echo 2>/dev/null
trap : INT
printf '\n\001%s 0 %s\002' "$1" "$PWD"
while IFS= read -r line; do
  case "$line" in
    "$1":*) . "$2/${line#*:}"; printf '\n\001%s %d %s\002' "$1" "$?" "$PWD";;
  esac
done
"""
_BEST_SHELL = 'exec "$(command -v bash || command -v sh)" -c "$@"'
_PAINT = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-Z]|[@-Z\\-_])")


class Place(Protocol):
    """Where terminals are opened: a box, or a stand-in with the same methods."""

    async def start(
        self, command: list[str], *, timeout: float, cwd: str | None, env: dict[str, str], terminal: Terminal
    ) -> Process: ...

    async def write_file(self, path: str, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Heard:
    """Output of a command since the last look."""

    text: str
    code: int | None
    """Exit code; None while the command runs."""
    job: int | None = None
    """Number of the job, if the command still runs."""
    skipped: int = 0
    """Number of output bytes that were dropped."""
    seconds: float = 0.0
    """How long the command was waited for, without asking the user. 0 while the host is short of CPU time."""


@dataclass(slots=True)
class _Running:
    process: Process
    command: str
    key: bytes = b""
    """The key in a shell's end markers; empty for a command that is a process of its own and ends with it."""
    said: bytearray = field(default_factory=bytearray)
    skipped: int = 0
    code: int | None = None
    folder: str | None = None
    seconds: float = 0.0

    def begin(self, command: str) -> None:
        self.command, self.code, self.folder, self.seconds = command, None, None, 0.0
        self.said.clear()

    async def hear(self, seconds: float) -> None:
        """Collect output until the command is done, for at most so long."""
        until, watch = time.monotonic() + seconds, ShareMeter()
        while self.code is None:
            left = until - time.monotonic()
            poll = await self.process.poll(wait=max(0.0, left))
            self.said += poll.output
            self.skipped += poll.skipped
            if len(self.said) > KEPT_BYTES:
                self.skipped += len(self.said) - KEPT_BYTES
                del self.said[:-KEPT_BYTES]
            self._look_for_mark()
            if self.code is None and poll.code is not None:
                self.code = poll.code
            if left <= 0:
                break
        share = watch.share(0.0)
        self.seconds += 0.0 if share.short else share.seconds

    def _look_for_mark(self) -> None:
        begin = self.said.find(b"\n\x01" + self.key + b" ") if self.key else -1
        end = self.said.find(b"\x02", begin) if begin >= 0 else -1
        if end < 0:
            return
        code, _, folder = bytes(self.said[begin + len(self.key) + 3 : end]).partition(b" ")
        self.code, self.folder = int(code), folder.decode("utf-8", "replace")
        del self.said[begin:]

    def take(self, job: int | None) -> Heard:
        # The output may end with the first part of a marker.
        cut = self.said.rfind(b"\n\x01") if self.key and self.code is None else -1
        text = plain(bytes(self.said if cut < 0 else self.said[:cut]))
        del self.said[: len(self.said) if cut < 0 else cut]
        skipped, self.skipped = self.skipped, 0
        seconds, self.seconds = self.seconds, 0.0
        return Heard(text, self.code, job if self.code is None else None, skipped, seconds)


class Terminals:
    """The shell of one agent and its jobs. `scripts` is the folder of the command files for the shell to source."""

    def __init__(self, place: Place, env: dict[str, str], scripts: str = FOLDER) -> None:
        self.place = place
        self._scripts = scripts
        self._env = {**env, **TAMED}
        self._shell: _Running | None = None
        self._folder: str | None = None
        self._commands = self._texts = 0
        self._jobs: dict[int, _Running] = {}

    async def run(self, command: str, *, seconds: float) -> Heard:
        """Run a command in the shell. One that is not done after `seconds` continues as a job."""
        shell = self._shell = self._shell or await self._open()
        self._commands += 1
        name = str(self._commands)
        await self.place.write_file(f"{self._scripts}/{shell.key.decode()}/{name}", command.encode())
        shell.begin(command)
        await shell.process.write(shell.key + b":" + name.encode() + b"\n")
        try:
            await shell.hear(seconds)
        except asyncio.CancelledError:
            # The caller is gone, and the next command must not be typed into this one.
            self._shell = None
            with suppress(SandboxError):
                await asyncio.shield(shell.process.kill())
            raise
        if shell.folder is not None:
            self._folder = shell.folder
        if shell.code is None:
            self._shell = None
            return shell.take(self._keep(shell))
        if shell.folder is None:
            self._shell = None  # the command ended the shell itself
        return shell.take(None)

    async def start(self, command: str, *, seconds: float) -> Heard:
        """Run a command as a job from the start, and look at it after `seconds`."""
        running = await self._started([command], command)
        number = self._keep(running)
        await running.hear(seconds)
        return running.take(number)

    async def look(self, job: int, *, seconds: float) -> Heard:
        """Get a job's new output, waiting up to `seconds` for its end. Raises KeyError for an unknown job."""
        running = self._jobs[job]
        await running.hear(seconds)
        return running.take(job)

    async def write(self, job: int, data: bytes) -> bool:
        """Write to a job's terminal. Return False if it no longer accepts input."""
        try:
            await self._jobs[job].process.write(data)
        except RequestRefused:
            return False
        return True

    async def end(self, job: int) -> Heard:
        running = self._jobs[job]
        await running.process.kill()
        await running.hear(1.0)
        return running.take(job)

    async def keep(self, folder: str, text: str) -> str:
        """Write a text to a file outside the workspace that commands can read; return its path."""
        self._texts += 1
        path = f"{folder}/{self._texts}.txt"
        await self.place.write_file(path, text.encode())
        return path

    def jobs(self) -> list[tuple[int, str, int | None]]:
        """Number, command and exit code of each job; the code is None if the job was running when last looked at."""
        return [(number, running.command, running.code) for number, running in self._jobs.items()]

    def _keep(self, running: _Running) -> int:
        number = len(self._jobs) + 1
        self._jobs[number] = running
        return number

    async def _open(self) -> _Running:
        key = secrets.token_hex(8)
        shell = await self._started([_DRIVER, "shell", key, f"{self._scripts}/{key}"], "", key.encode())
        # Wait for the first marker: before `stty -echo` has run, the terminal would echo what is written to it.
        await shell.hear(OPEN_SECONDS)
        if shell.folder is None:
            raise SandboxUnavailable(f"no shell came up within {OPEN_SECONDS:g} s: {plain(bytes(shell.said))}")
        return shell

    async def _started(self, script: list[str], shown: str, key: bytes = b"") -> _Running:
        """Start `script`, a command and its arguments, in the best shell there is."""
        command = ["/bin/sh", "-c", _BEST_SHELL, "sh", *script]
        process = await self.place.start(command, timeout=JOB_SECONDS, cwd=self._folder, env=self._env, terminal=SIZE)
        return _Running(process, shown, key)


def plain(said: bytes) -> str:
    """Terminal output as it would remain on screen: no colours, and the last state of a rewritten line."""
    text = _PAINT.sub("", said.decode("utf-8", "replace").replace("\r\n", "\n"))
    return "\n".join(_line(line) for line in text.split("\n")).strip("\n")


def _line(line: str) -> str:
    shown: list[str] = []
    for character in line.rstrip("\r").rpartition("\r")[2]:
        if character == "\b":
            del shown[-1:]
        elif character == "\t" or character >= " ":
            shown.append(character)
    return "".join(shown)
