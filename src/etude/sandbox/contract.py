"""The contract of a sandbox backend: a box made from an image, with its own files and processes, no network by default,
and forkable.

Every backend keeps this contract. tests/contract/sandbox/ is the suite that all of them must pass, third-party ones
included. What a backend cannot do it leaves out of `features` and refuses with `RequestRefused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from etude.sandbox.cpu_share import Share


class SandboxError(Exception):
    """The sandbox could not do what was asked. The message says what was expected, what was found, and what to do."""


class SandboxLost(SandboxError):
    """The box is gone (killed, host fault). Never the agent's fault: the rollout is retried, then masked."""


class SandboxUnavailable(SandboxError):
    """This host cannot run the backend; the message names the missing capability and the knob that grants it."""


class BoxBusy(SandboxError):
    """A process holds files open for writing; it is named in the message. `fork(kill=True)` ends it."""


class RequestRefused(SandboxError):
    """The request breaks a rule of the box (path outside it, file too large, unknown user); nothing was done."""


class HostOverloaded(SandboxError):
    """A command timed out on a host that gave it no CPU time, which says nothing about whoever wrote it."""


class DiskFull(SandboxError):
    """The box's or the host's disk is full."""


class ImageError(SandboxError):
    """An image cannot be read, fetched or built. The message names the file, layer or line, and what is wrong."""


class BuildFailed(ImageError):
    """The Dockerfile itself does not work. This is its author's fault, whereas every other error is the host's."""

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit
        """The limit that a step hit, as in `ExecResult.limit`, or "disk"; empty if none was hit."""


class Feature(StrEnum):
    FORK = "fork"
    SNAPSHOT = "snapshot"
    NO_NETWORK = "no_network"
    EGRESS = "egress"
    """Boxes can reach an allow-list of hosts through a proxy that logs every request."""
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    DISK_LIMIT = "disk_limit"
    """The kernel enforces `disk_mb`. Without it only the size of single files is limited."""
    SECOND_USER = "second_user"
    """Commands can run as a user that the agent's processes cannot touch, which a sealed grader needs."""
    ROOT_USER = "root_user"
    """Commands can run as the box's root, whose rights cover the box only. Package managers need it."""
    PTY = "pty"
    BACKGROUND = "background"
    ISOLATED = "isolated"
    """The host's files and processes are out of reach. Without it: for trusted code only, and no grading."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 512
    processes: int = 64
    cpu_seconds: int = 60
    """Total CPU time of one command's processes."""
    file_mb: int = 64
    """Size of the largest single file."""
    disk_mb: int = 256
    """How much the box may write on top of its image."""
    output_bytes: int = 1_000_000
    """Bytes kept of stdout and of stderr each. The rest is read and thrown away, and the result is marked truncated."""


@dataclass(frozen=True, slots=True)
class Egress:
    """Which hosts a box may reach: by name ("index.example", "*.packages.example") on ports 443 and 80, or as
    "host:port".

    Hosts that no pattern names cannot be reached. Every request is logged under the policy's name.
    """

    name: str = "none"
    allow: tuple[str, ...] = ()
    credentials: bool = False
    """Let Authorization headers, cookies and the like through; otherwise they are removed from every request."""
    private: bool = False
    """Let allowed names resolve to private addresses and to the host itself; otherwise these are refused."""
    proxy: str = field(default="", repr=False)
    """The HTTP proxy through which all allowed hosts are reached (http://[user:password@]host:port). Empty: use the
    host's own proxy variables. The box never sees it."""


NO_EGRESS = Egress()


@dataclass(frozen=True, slots=True)
class BoxSpec:
    image: str
    """An image id of the backend's image store."""
    workdir: str = ""
    """Folder where commands start and relative paths begin; empty: the image's own."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables that override the image's own."""
    limits: Limits = field(default_factory=Limits)
    egress: Egress = NO_EGRESS
    name: str = ""


@dataclass(slots=True)
class ExecResult:
    code: int
    """Exit code; 128 + signal number for a killed command."""
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    limit: str = ""
    """The limit that ended the command: "time", "cpu", "memory" or "file"; empty if the command ended by itself."""
    share: Share = field(default_factory=Share)
    """How much of the host's CPU time the command could get and did get while it ran."""

    @property
    def starved(self) -> bool:
        """It timed out because the host gave it too little CPU time, so the rest says nothing."""
        return self.timed_out and self.share.starved


OnOutput = Callable[[int, bytes], None]
"""Callback for output as it arrives: called with 1 (stdout) or 2 (stderr) and bytes, at most `output_bytes` of each."""


@dataclass(frozen=True, slots=True)
class Poll:
    """New output of a background command since the last poll, and its state."""

    output: bytes
    """stdout and stderr interleaved, in the order they arrived."""
    skipped: int
    """Number of bytes, oldest first, that were dropped because nobody polled in time."""
    code: int | None
    """None while the command runs; 128 + signal number for a killed one."""
    limit: str = ""


@runtime_checkable
class Process(Protocol):
    """A background command. It ends with its box, at its timeout or when killed, with its whole process tree."""

    @property
    def id(self) -> int: ...

    async def poll(self, *, wait: float = 0.0) -> Poll:
        """Returns the output so far. With `wait`, blocks for at most that long until there is output or an end.

        Safe to call after the end: it returns the remaining output, then none, always with the same code."""
        ...

    async def write(self, data: bytes) -> None:
        """Writes to the command's stdin or terminal. RequestRefused once the command has ended or closed its stdin, or
        while 1 MiB is waiting for it to read."""
        ...

    async def close_stdin(self) -> None:
        """Closes stdin; on a terminal, sends the end-of-file character."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Sets the terminal's size; RequestRefused if the command has no terminal."""
        ...

    async def kill(self) -> None:
        """Ends the whole process tree. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Terminal:
    rows: int = 40
    columns: int = 120


@dataclass(frozen=True, slots=True)
class BoxStats:
    processes: int
    memory_bytes: int
    cpu_seconds: float
    """CPU time of everything that has run in the box."""
    disk_bytes: int
    """Bytes that the box has written on top of its image."""
    seconds: float
    """Seconds since the box was made."""


@runtime_checkable
class Box(Protocol):
    """One running sandbox. Paths are absolute inside the box, or relative to its workdir, which they must not leave."""

    @property
    def id(self) -> str: ...

    async def exec(
        self,
        command: list[str] | str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        user: str = "",
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Runs a command (a string goes to /bin/sh -c) and ends its whole process tree when it returns or times out.

        `user` is empty (the image's own user: "agent", unless an image says otherwise), "agent", "grader" (with
        SECOND_USER), "root" (with ROOT_USER), or a user that the image's /etc/passwd names; RequestRefused for others.
        """
        ...

    async def start(
        self,
        command: list[str] | str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str = "",
        terminal: Terminal | None = None,
    ) -> Process:
        """Runs a command in the background, on its own terminal if one is asked for."""
        ...

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        """Raises FileNotFoundError, IsADirectoryError, or RequestRefused (too large, outside the workdir)."""
        ...

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None: ...

    async def list_files(self, path: str = ".") -> list[str]:
        """All regular files below a directory, relative to it and sorted. Links are not followed, and mounts below it
        (/proc, /dev, folders that the host lends) are not entered. RequestRefused beyond 100,000 files."""
        ...

    async def layout(self, paths: Sequence[str]) -> bytes:
        """Lists path, kind, mode and link target of everything below these folders, in an order that depends on nothing
        else, so equal layouts give equal bytes. Missing folders are skipped. Mount points are listed but not entered.
        RequestRefused beyond 100,000 names."""
        ...

    async def read_tree(self, path: str = ".", *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """Returns a tar of a directory: the directory itself first, as ".", then its files, folders and links as they
        are. For a file, the tar holds that file alone, under its own name. RequestRefused beyond the bounds."""
        ...

    async def write_tree(self, path: str, tar: bytes, *, max_bytes: int = 256 << 20, max_files: int = 10_000) -> None:
        """Unpacks a tar into a directory, made if missing. Nothing is written of a tar with a device, a member outside
        the directory or through a link, or too much content."""
        ...

    async def stats(self) -> BoxStats: ...

    async def snapshot(self) -> str:
        """Saves what the box has written as a new image and returns its id; the box goes on above that image."""
        ...

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        """Makes children with the same files and no processes. BoxBusy if a process is writing, unless `kill` is set.

        A child that needs its parent's processes must run them again: the parent's `commands` lists them."""
        ...

    @property
    def commands(self) -> list[str]:
        """The commands given to this box and its ancestors, oldest first."""
        ...

    async def destroy(self) -> None:
        """Ends every process and removes every file and mount. Safe to call twice."""
        ...


@runtime_checkable
class Sandboxes(Protocol):
    """A backend: an image store and the boxes made from its images."""

    @property
    def features(self) -> frozenset[Feature]: ...

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        """Makes an image from a base and files under `workdir`, or finds it: images are content-addressed."""
        ...

    async def import_image(self, source: Path) -> str:
        """Imports a root file system from a folder, a tar (also compressed), or an OCI or `docker save` archive. The
        ImageError for a damaged one names the damaged part."""
        ...

    async def pull_image(self, reference: str) -> str:
        """Pulls an image from an OCI registry; the reference is "registry/name:tag" or "...@sha256:..."."""
        ...

    async def build_image(
        self,
        context: Path,
        *,
        dockerfile: Path | None = None,
        target: str = "",
        arguments: dict[str, str] | None = None,
        egress: Egress = NO_EGRESS,
        say: Callable[[str], None] | None = None,
    ) -> str:
        """Builds a Dockerfile (by default the one in the context). Steps that were built before come from the cache."""
        ...

    async def create(self, spec: BoxSpec) -> Box: ...

    async def close(self) -> None:
        """Destroys every box of this backend instance."""
        ...


@dataclass(frozen=True, slots=True)
class BuildTerms:
    """Limits and environment of a trial build."""

    limits: Limits
    """Limits of each step, except that `cpu_seconds` is for all steps together."""
    seconds: float
    """Wall-clock limit for all steps together."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables for the commands of the build. They override the Dockerfile's own and stay out of the image."""


@dataclass(frozen=True, slots=True)
class TriedBuild:
    sandboxes: Sandboxes
    """The backend that holds the image until the trial ends."""
    image: str
    """Image id; empty if the build failed."""
    failure: BuildFailed | None
    share: Share
    """CPU-time share of all steps together, since they run under one clock."""
    memory_bytes: int
    """Peak memory of any step."""


@runtime_checkable
class TriesBuilds(Protocol):
    """A backend that can build from scratch, without cached steps, and leaves nothing behind."""

    def try_build(
        self,
        context: Path,
        terms: BuildTerms,
        *,
        arguments: dict[str, str] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> AbstractAsyncContextManager[TriedBuild]:
        """Builds the context; everything made for the build is deleted on exit. A failure of the Dockerfile is reported
        in `TriedBuild.failure`, never raised."""
        ...
