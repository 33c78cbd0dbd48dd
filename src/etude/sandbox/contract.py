"""The contract of a sandbox backend. A backend makes boxes from images; a box has its own files and processes, no
network by default, and can be forked.

tests/contract/sandbox/ is the test suite that all backends must pass, third-party ones included. A backend leaves
features that it does not support out of `features`, and refuses calls that need them with `RequestRefused`.
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
    """Base class of all errors of the sandbox. Each message says what was expected, what was found, and what to do."""


class SandboxLost(SandboxError):
    """The box is gone: it was killed, or its host failed. This is never the agent's fault, so the rollout is retried. A
    rollout whose last retry fails too is left out of training."""


class SandboxUnavailable(SandboxError):
    """This host cannot run the backend. The message names the missing capability and the setting that grants it."""


class BoxBusy(SandboxError):
    """A process in the box may be writing files, so the files cannot be copied. The message names the process;
    `fork(kill=True)` ends it."""


class RequestRefused(SandboxError):
    """The request breaks a rule of the box (a path outside it, a file too large, an unknown user). Nothing was done."""


class HostOverloaded(SandboxError):
    """A command timed out because its host gave it too little CPU time. The timeout says nothing about the command."""


class DiskFull(SandboxError):
    """The box's or the host's disk is full."""


class ImageError(SandboxError):
    """An image cannot be read, fetched or built. The message names the file, layer or line, and what is wrong."""


class BuildFailed(ImageError):
    """The build failed because of the Dockerfile, so the Dockerfile's author is to blame. Any other error of a build is
    the host's fault."""

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit
        """The limit that a build step hit: a value of `ExecResult.limit`, or "disk"; empty if none was hit."""


class Feature(StrEnum):
    """A feature that a backend may support beyond running commands and accessing files."""

    FORK = "fork"
    SNAPSHOT = "snapshot"
    NO_NETWORK = "no_network"
    EGRESS = "egress"
    """Boxes can reach an allow-list of hosts through a proxy that logs every request."""
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    DISK_LIMIT = "disk_limit"
    """The kernel enforces `Limits.disk_mb`. Without this feature, only the size of single files is limited."""
    SECOND_USER = "second_user"
    """Commands can run as a second user, whose files and processes the agent cannot touch. Graders need it, so that the
    agent cannot tamper with them."""
    ROOT_USER = "root_user"
    """Commands can run as root inside the box, without any rights outside it. Package managers need it."""
    OWN_IDS = "own_ids"
    """Each box has user ids of its own on the host. The kernel counts pipe pages, descriptors in flight and more for
    each user id, so without this feature one box can take them from others."""
    PTY = "pty"
    BACKGROUND = "background"
    ISOLATED = "isolated"
    """Commands cannot reach the host's files and processes. A backend without this feature is for trusted code only and
    cannot grade."""


class Capability(StrEnum):
    """A wall of a backend: what its boxes cannot reach, or do not share. Unlike a Feature, it enables no call.
    `etude sandbox attack` tries each wall that a backend declares."""

    HOST_FILES = "host_files"
    """Commands reach no file of the host but its system folders, and can change none."""
    NAMESPACES = "namespaces"
    """A box has its own process table, mounts, devices, System V objects and host name. Commands see no other's."""
    OWN_INIT = "own_init"
    """Pid 1 of each box is Étude's own init, which the box's commands can neither end, trace nor read. When a command
    ends, everything that it started ends too."""
    SYSTEM_CALLS = "system_calls"
    """Commands can neither make a system call that inside/seccomp.json denies, nor create a namespace."""
    KERNEL_TABLES = "kernel_tables"
    """What a box takes of the kernel's tables (inotify, queues, timers, terminals...) has a limit for each box. Those
    that the kernel limits by user id alone (pipes, descriptors in flight) need Feature.OWN_IDS too."""
    BUFFER_MEMORY = "buffer_memory"
    """What a box keeps in buffers of sockets and pipes counts towards its memory."""
    OWN_KERNEL = "own_kernel"
    """System calls of commands are answered by a kernel of the box's own (gVisor, Kata, Firecracker), so that a bug of
    the host's kernel is no way out."""
    OWN_MACHINE = "own_machine"
    """Each box runs in a virtual machine with a kernel of its own (Kata, Firecracker). The host needs /dev/kvm."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a box. Each command in the box gets the full `cpu_seconds` and `output_bytes` for itself."""

    memory_mb: int = 512
    processes: int = 64
    cpu_seconds: int = 60
    """CPU time of all processes that one command starts, taken together."""
    file_mb: int = 64
    """Maximum size of any single file."""
    disk_mb: int = 256
    """Maximum size of what the box writes on top of its image."""
    output_bytes: int = 1_000_000
    """Bytes kept of stdout, and as many of stderr. Further output is discarded, and the result marked as truncated."""


@dataclass(frozen=True, slots=True)
class Egress:
    """An egress policy: the hosts that a box may reach. A host is given as a name ("index.example",
    "*.packages.example"), which allows its ports 443 and 80, or as "host:port".

    No other host can be reached. Every request is logged under the policy's name.
    """

    name: str = "none"
    allow: tuple[str, ...] = ()
    credentials: bool = False
    """Pass on Authorization headers, cookies and the like. By default they are removed from every request."""
    private: bool = False
    """Pass on requests to allowed names that resolve to a private address or to the host itself. By default they are
    refused."""
    proxy: str = field(default="", repr=False)
    """The HTTP proxy through which all allowed hosts are reached (http://[user:password@]host:port). Empty: use the
    proxy variables of the host's environment. The box never sees this address."""


NO_EGRESS = Egress()


@dataclass(frozen=True, slots=True)
class BoxSpec:
    image: str
    """The image's id in the backend's image store."""
    workdir: str = ""
    """Folder where commands start and relative paths begin. Empty: the image's workdir."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of all commands. They override the image's variables."""
    limits: Limits = field(default_factory=Limits)
    egress: Egress = NO_EGRESS
    name: str = ""
    """A label for the box in logs and messages. It need not be unique."""


@dataclass(slots=True)
class ExecResult:
    """The result of a foreground command."""

    code: int
    """Exit code; 128 + signal number for a killed command."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """Wall-clock time the command took."""
    timed_out: bool = False
    truncated: bool = False
    """Output was discarded because it exceeded `output_bytes`."""
    limit: str = ""
    """The limit that ended the command: "time", "cpu", "memory" or "file"; empty if the command ended by itself."""
    share: Share = field(default_factory=Share)
    """CPU time that the host offered while the command ran, and how much of it the command used."""

    @property
    def starved(self) -> bool:
        """Whether the command timed out because its host gave it too little CPU time, so that its result says nothing
        about the command. False if it wrote more than `output_bytes`: the host reads all output, so the command may
        itself have kept it busy."""
        return self.timed_out and self.share.starved and not self.truncated


OnOutput = Callable[[int, bytes], None]
"""Callback for output as it arrives: gets the stream number (1 for stdout, 2 for stderr) and the bytes, at most
`output_bytes` per stream."""


@dataclass(frozen=True, slots=True)
class Poll:
    """The state of a background command, and its output since the last poll."""

    output: bytes
    """stdout and stderr interleaved, in the order in which they arrived since the last poll."""
    skipped: int
    """Number of output bytes that were dropped, oldest first, because they were not polled in time."""
    code: int | None
    """Exit code; None while the command runs, 128 + signal number if it was killed."""
    limit: str = ""
    """The limit that ended the command: "time", "cpu", "memory" or "file". Empty while the command runs, or if it
    ended by itself."""


@runtime_checkable
class Process(Protocol):
    """A command that runs in the background. Its whole process tree ends with the box, at the command's timeout, or
    when killed."""

    @property
    def id(self) -> int: ...

    async def poll(self, *, wait: float = 0.0) -> Poll:
        """Return the output since the last poll. With `wait`, block for at most that many seconds until there is output
        or the command ends.

        After the command has ended, polls return the remaining output and then none, always with the same exit code.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Write to the command's stdin or terminal. Raise RequestRefused if the command has ended or closed its stdin,
        or if 1 MiB is already waiting for the command to read it."""
        ...

    async def close_stdin(self) -> None:
        """Close the command's stdin; on a terminal, send the end-of-file character."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size. Raise RequestRefused if the command has no terminal."""
        ...

    async def kill(self) -> None:
        """Kill the whole process tree. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Terminal:
    """Size of a command's terminal, in characters."""

    rows: int = 40
    columns: int = 120


@dataclass(frozen=True, slots=True)
class BoxStats:
    processes: int
    memory_bytes: int
    cpu_seconds: float
    """CPU time used by all commands since the box was made."""
    disk_bytes: int
    """Bytes that the box has written on top of its image."""
    seconds: float
    """Age of the box in seconds."""


@runtime_checkable
class Box(Protocol):
    """One running sandbox. File paths are absolute inside the box, or relative to its workdir. A relative path must not
    leave the workdir."""

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
        """Run a command and wait for its result. A string is run by /bin/sh -c. The whole process tree ends when the
        command returns or times out.

        `user` is "agent", "grader" (needs SECOND_USER), "root" (needs ROOT_USER) or a name in the image's /etc/passwd;
        any other raises RequestRefused. If empty, it is the image's default user, which is "agent" unless the image
        sets another.
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
        """Start a command in the background. If `terminal` is given, the command gets a terminal of that size."""
        ...

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        """Return a file's bytes. Raise FileNotFoundError, IsADirectoryError, or RequestRefused if the file is outside
        the workdir or too large: for `max_bytes`, or for half of the box's memory."""
        ...

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Write a file, replacing an existing one and creating missing folders."""
        ...

    async def list_files(self, path: str = ".") -> list[str]:
        """List all regular files below a folder, relative to it and sorted. Symbolic links are not followed, and mount
        points below the folder (/proc, /dev, folders of the host) are not entered. Raise RequestRefused beyond 100,000
        files."""
        ...

    async def layout(self, paths: Sequence[str]) -> bytes:
        """Return path, kind, mode and link target of everything below these folders, as bytes that are equal exactly
        when the layouts are equal. Missing folders are skipped. Mount points are listed but not entered. Raise
        RequestRefused beyond 100,000 names."""
        ...

    async def read_tree(self, path: str = ".", *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """Return a tar of a folder: first the folder itself, as ".", then its files, folders and links. If `path` is a
        file, the tar holds only that file, under its own name. Raise RequestRefused beyond `max_bytes` or
        `max_files`, or if the files need more than half of the box's memory."""
        ...

    async def write_tree(self, path: str, tar: bytes, *, max_bytes: int = 256 << 20, max_files: int = 10_000) -> None:
        """Unpack a tar into a folder, which is created if missing. The tar is refused, and nothing written, if it holds
        a device, a member outside the folder or below a symbolic link, or more than `max_bytes` or `max_files`."""
        ...

    async def stats(self) -> BoxStats: ...

    async def snapshot(self) -> str:
        """Save the box's files as a new image and return its id. Raise BoxBusy while a process is writing."""
        ...

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        """Make `count` boxes with copies of this box's files and no processes. Raise BoxBusy while a process is
        writing, unless `kill` is set, which ends all processes first.

        If a new box needs a process that ran in this box, the caller must start it there again. `commands` lists what
        this box has run."""
        ...

    @property
    def commands(self) -> list[str]:
        """All commands that were given to this box and to the boxes it was forked from, as shell lines, oldest
        first."""
        ...

    async def destroy(self) -> None:
        """End every process of the box, and remove all its files and mounts. Safe to call twice."""
        ...


@runtime_checkable
class Sandboxes(Protocol):
    """A backend: an image store, and the boxes made from its images."""

    @property
    def features(self) -> frozenset[Feature]: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        """Make an image from a base image and `files` (path relative to `workdir` -> content); return its id. Images
        are content-addressed: the same content gives the same id and is stored once."""
        ...

    async def import_image(self, source: Path) -> str:
        """Import a root file system from a folder, a tar (may be compressed), or an OCI or `docker save` archive;
        return the image's id. If the source is damaged, ImageError names the damaged part."""
        ...

    async def pull_image(self, reference: str) -> str:
        """Pull an image from an OCI registry; return its id. The reference is "registry/name:tag" or
        "registry/name@sha256:..."."""
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
        """Build an image from a Dockerfile (by default the one in the context) and return its id. Steps that were built
        before come from the cache. `say` is called with each line of the build's output."""
        ...

    async def create(self, spec: BoxSpec) -> Box:
        """Make a box from `spec`, and return it once it can run commands."""
        ...

    async def close(self) -> None:
        """Destroy every box that this backend instance made."""
        ...


@dataclass(frozen=True, slots=True)
class BuildTerms:
    """Limits and environment of a trial build, which uses no cached steps and whose image is deleted afterwards."""

    limits: Limits
    """Limits of each step, except that `cpu_seconds` is the total for all steps."""
    seconds: float
    """Wall-clock limit for all steps together."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of the build's commands. They override the Dockerfile's own and are not stored in the
    image."""


@dataclass(frozen=True, slots=True)
class TriedBuild:
    """The outcome of a trial build: a temporary image, or the Dockerfile's failure."""

    sandboxes: Sandboxes
    """The backend that holds the image until the context manager of `try_build` exits."""
    image: str
    """Image id; empty if the build failed."""
    failure: BuildFailed | None
    share: Share
    """CPU time that the host offered the build, over all steps, and how much of it the steps used."""
    memory_bytes: int
    """Peak memory use of any single step."""


@runtime_checkable
class TriesBuilds(Protocol):
    """A backend that can make trial builds: from scratch, without cached steps, leaving nothing behind."""

    def try_build(
        self,
        context: Path,
        terms: BuildTerms,
        *,
        arguments: dict[str, str] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> AbstractAsyncContextManager[TriedBuild]:
        """Return a context manager that builds `context` without cached steps. A failure of the Dockerfile is reported
        in `TriedBuild.failure`, never raised. Everything made for the build is deleted on exit."""
        ...
