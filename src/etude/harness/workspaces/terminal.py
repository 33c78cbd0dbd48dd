"""The agent's terminal: a persistent shell, and background jobs.

One shell runs the commands one after another, so that its current folder and variables persist. No command can block
it: a command that does not end in time becomes a job, which can be polled, written to or killed, and the next command
gets a new shell in the same folder. Terminal output (colours, progress bars, rewritten lines) is reduced to plain text.

To detect the end of a command, the shell runs a small driver that sources one file per command and then prints a marker
with a random key, which no command prints by chance.
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
"""Environment variables that make programs work without pager, colours and prompts."""
SIZE = Terminal(rows=50, columns=200)
JOB_SECONDS = 6 * 3600.0
"""Time limit of a job in seconds. A job ends earlier if its box ends."""
OPEN_SECONDS = 30.0
KEPT_BYTES = 4_000_000
"""Maximum number of unread output bytes of a command; the oldest are dropped."""
FOLDER = "/tmp/etude-shell"
"""Folder in which each command is stored as a script file."""

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


class TerminalHost(Protocol):
    """A place where terminals can be opened: a box, or the user's own machine."""

    async def start(
        self, command: list[str], *, timeout: float, cwd: str | None, env: dict[str, str], terminal: Terminal
    ) -> Process:
        """Start a command on a new terminal."""

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file that commands can read."""


@dataclass(frozen=True, slots=True)
class TerminalOutput:
    """New output of a command."""

    text: str
    code: int | None
    job: int | None = None
    """Number of the job if the command still runs."""
    skipped: int = 0
    seconds: float = 0.0
    """Seconds that the caller waited for the command, excluding questions to the user and waits while the host was
    short of CPU time."""


@dataclass(slots=True)
class _Running:
    """A shell with its current command, or a background job."""

    process: Process
    command: str
    key: bytes = b""
    """Random key in a shell's markers. Empty for a job with its own process, whose exit is the end of the command."""
    said: bytearray = field(default_factory=bytearray)
    skipped: int = 0
    code: int | None = None
    folder: str | None = None
    """The shell's current folder after the command; None until its end marker was printed."""
    seconds: float = 0.0
    """Seconds that the agent has waited since the output was last read."""

    def begin(self, command: str) -> None:
        self.command, self.code, self.folder, self.seconds = command, None, None, 0.0
        self.said.clear()

    async def hear(self, seconds: float) -> None:
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
        """Take exit code and current folder from the marker that the shell prints at the end of a command."""
        begin = self.said.find(b"\n\x01" + self.key + b" ") if self.key else -1
        end = self.said.find(b"\x02", begin) if begin >= 0 else -1
        if end < 0:
            return
        code, _, folder = bytes(self.said[begin + len(self.key) + 3 : end]).partition(b" ")
        self.code, self.folder = int(code), folder.decode("utf-8", "replace")
        del self.said[begin:]

    def take(self, job: int | None) -> TerminalOutput:
        # The output may end with an incomplete end marker, which stays unread.
        cut = self.said.rfind(b"\n\x01") if self.key and self.code is None else -1
        text = plain(bytes(self.said if cut < 0 else self.said[:cut]))
        del self.said[: len(self.said) if cut < 0 else cut]
        skipped, self.skipped = self.skipped, 0
        seconds, self.seconds = self.seconds, 0.0
        return TerminalOutput(text, self.code, job if self.code is None else None, skipped, seconds)


class Terminals:
    """The shell of one agent and its background jobs. Each command is stored as a script file in `scripts`."""

    def __init__(self, place: TerminalHost, env: dict[str, str], scripts: str = FOLDER) -> None:
        self.place = place
        self._scripts = scripts
        self._env = {**env, **TAMED}
        self._shell: _Running | None = None
        self._folder: str | None = None
        self._commands = self._texts = 0
        self._jobs: dict[int, _Running] = {}

    async def run(self, command: str, *, seconds: float) -> TerminalOutput:
        """Run a command in the shell. If it does not end within `seconds`, it continues as a job."""
        shell = self._shell = self._shell or await self._open()
        self._commands += 1
        name = str(self._commands)
        await self.place.write_file(f"{self._scripts}/{shell.key.decode()}/{name}", command.encode())
        shell.begin(command)
        await shell.process.write(shell.key + b":" + name.encode() + b"\n")
        try:
            await shell.hear(seconds)
        except asyncio.CancelledError:
            # The command may still run, so the next command must not be written to this shell.
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
            self._shell = None  # the command ended the shell, for example by `exit`
        return shell.take(None)

    async def start(self, command: str, *, seconds: float) -> TerminalOutput:
        """Start a command as a job, and return its output of the first `seconds`."""
        running = await self._started([command], command)
        number = self._keep(running)
        await running.hear(seconds)
        return running.take(number)

    async def poll(self, job: int, *, seconds: float) -> TerminalOutput:
        """Return a job's new output, after waiting up to `seconds` for its end. Raises KeyError for an unknown job."""
        running = self._jobs[job]
        await running.hear(seconds)
        return running.take(job)

    async def write(self, job: int, data: bytes) -> bool:
        """Write to a job's terminal. Return False if the job no longer accepts input."""
        try:
            await self._jobs[job].process.write(data)
        except RequestRefused:
            return False
        return True

    async def end(self, job: int) -> TerminalOutput:
        """Kill a job and return its new output. Raises KeyError for an unknown job."""
        running = self._jobs[job]
        await running.process.kill()
        await running.hear(1.0)
        return running.take(job)

    async def keep(self, folder: str, text: str) -> str:
        """Write a text to a new file in `folder`, outside the workspace, and return its path."""
        self._texts += 1
        path = f"{folder}/{self._texts}.txt"
        await self.place.write_file(path, text.encode())
        return path

    def jobs(self) -> list[tuple[int, str, int | None]]:
        """Return number, command and exit code of each job; the code is None if the job ran when last polled."""
        return [(number, running.command, running.code) for number, running in self._jobs.items()]

    def _keep(self, running: _Running) -> int:
        number = len(self._jobs) + 1
        self._jobs[number] = running
        return number

    async def _open(self) -> _Running:
        key = secrets.token_hex(8)
        shell = await self._started([_DRIVER, "shell", key, f"{self._scripts}/{key}"], "", key.encode())
        # Wait for the first marker, because until `stty -echo` has run, the terminal echoes what is written to it.
        await shell.hear(OPEN_SECONDS)
        if shell.folder is None:
            raise SandboxUnavailable(f"the shell did not start within {OPEN_SECONDS:g} s: {plain(bytes(shell.said))}")
        return shell

    async def _started(self, script: list[str], shown: str, key: bytes = b"") -> _Running:
        """Start a process that runs `script`, a shell script and its arguments, with bash or else sh."""
        command = ["/bin/sh", "-c", _BEST_SHELL, "sh", *script]
        process = await self.place.start(command, timeout=JOB_SECONDS, cwd=self._folder, env=self._env, terminal=SIZE)
        return _Running(process, shown, key)


def plain(said: bytes) -> str:
    """Convert terminal output to plain text: no colours, and only the last state of rewritten lines."""
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
