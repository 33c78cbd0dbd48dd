"""The Sandbox noun: a box with its own files, processes and network (none), made from an image, forkable.

Every backend keeps this contract; tests/contract/sandbox/ is the suite that any of them, also a third party's, must
pass. What a backend cannot do it leaves out of `features`, and refuses with `RequestRefused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from etude.sandbox.share import Share


class SandboxError(Exception):
    """The sandbox could not do what was asked; says what was expected, found, and what to do."""


class SandboxLost(SandboxError):
    """The box is gone (killed, host fault). Never the agent's fault: the rollout is retried, then masked."""


class SandboxUnavailable(SandboxError):
    """This host cannot run the backend; the message names the missing capability and the knob that grants it."""


class BoxBusy(SandboxError):
    """A process holds files open for writing; it is named in the message. `fork(kill=True)` ends it."""


class RequestRefused(SandboxError):
    """The request breaks a rule of the box (path outside it, file too large, unknown user); nothing was done."""


class HostOverloaded(SandboxError):
    """A command's clock expired on a host that gave it no time: that says nothing about who wrote the command."""


class DiskFull(SandboxError):
    """The box's or the host's disk is full."""


class ImageError(SandboxError):
    """An image cannot be read, fetched or built; names the file, layer or line, what was expected and found."""


class BuildFailed(ImageError):
    """What a Dockerfile says does not work: its author's doing, whereas every other error is the host's."""

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit
        """As an ExecResult's, "disk" among them; empty where no limit was met."""


class Feature(StrEnum):
    FORK = "fork"
    SNAPSHOT = "snapshot"
    NO_NETWORK = "no_network"
    EGRESS = "egress"
    """Boxes can reach an allow-list of hosts through a proxy that logs every request."""
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    DISK_LIMIT = "disk_limit"
    """`disk_mb` is held by the kernel; else only single files are limited."""
    SECOND_USER = "second_user"
    """Commands can run under a user that the agent's processes cannot touch: what a sealed grader needs."""
    ROOT_USER = "root_user"
    """Commands can run as the box's root, with rights over the box alone: what package managers need."""
    PTY = "pty"
    BACKGROUND = "background"
    ISOLATED = "isolated"
    """The host's files and processes are out of reach. Without it a backend is for trusted code only: no grading."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 512
    processes: int = 64
    cpu_seconds: int = 60
    """CPU time of one command's processes."""
    file_mb: int = 64
    """Largest single file."""
    disk_mb: int = 256
    """What the box may add to its image."""
    output_bytes: int = 1_000_000
    """Kept of each of stdout and stderr; the rest is drained and counted."""


@dataclass(frozen=True, slots=True)
class Egress:
    """What a box may reach: hosts by name ("index.example", "*.packages.example"), ports 443 and 80, or "host:port".

    Nothing is reachable that no pattern names. Every request is logged under the policy's name.
    """

    name: str = "none"
    allow: tuple[str, ...] = ()
    credentials: bool = False
    """Authorization, cookies and the like pass; else they are taken out of every request."""
    private: bool = False
    """Allowed names may lead to private addresses and to the host itself; else they are refused, whatever they mean."""
    proxy: str = field(default="", repr=False)
    """The HTTP proxy by which all that is allowed is reached (http://[user:password@]host:port); empty: as the host's
    own variables say. A box learns nothing of it."""


NO_EGRESS = Egress()


@dataclass(frozen=True, slots=True)
class BoxSpec:
    image: str
    """An image id of the backend's store."""
    workdir: str = ""
    """Where relative paths and commands start; empty: the image's own."""
    env: tuple[tuple[str, str], ...] = ()
    """Over the image's own."""
    limits: Limits = field(default_factory=Limits)
    egress: Egress = NO_EGRESS
    name: str = ""


@dataclass(slots=True)
class ExecResult:
    code: int
    """Exit code; 128 + signal for a killed command."""
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    limit: str = ""
    """The limit that ended the command: "time", "cpu", "memory" or "file"; empty where the command ended by itself."""
    share: Share = field(default_factory=Share)
    """Of the host's time, while it ran."""

    @property
    def starved(self) -> bool:
        """Its clock expired, and the host is to blame: whatever else it shows says nothing."""
        return self.timed_out and self.share.starved


OnOutput = Callable[[int, bytes], None]
"""Called with 1 (stdout) or 2 (stderr) and bytes as they come, at most `output_bytes` of each."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What a background command has said since the last look, and how it stands."""

    output: bytes
    """stdout and stderr together, in the order they came."""
    skipped: int
    """Bytes that were thrown away, oldest first, since nobody looked in time."""
    code: int | None
    """None while it runs; 128 + signal for a killed one."""
    limit: str = ""


@runtime_checkable
class Process(Protocol):
    """A background command. It ends with its box, with its time, or when it is killed: always as a whole tree."""

    @property
    def id(self) -> int: ...

    async def poll(self, *, wait: float = 0.0) -> Poll:
        """Takes what is there; with `wait`, returns at the first output or at the end, at the latest after that time.

        Safe to call after the end: the output that is left, then none, with the same code."""
        ...

    async def write(self, data: bytes) -> None:
        """To its stdin or terminal; RequestRefused once it has ended or closed its stdin, or reads so slowly that 1 MiB
        waits."""
        ...

    async def close_stdin(self) -> None:
        """End of input; on a terminal, the end-of-file character."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """RequestRefused without a terminal."""
        ...

    async def kill(self) -> None:
        """Ends the tree. Safe to call twice."""
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
    """Of all that has run in the box."""
    disk_bytes: int
    """What the box has added to its image."""
    seconds: float
    """Since it was made."""


@runtime_checkable
class Box(Protocol):
    """One running sandbox. Paths are absolute inside the box, or relative to its workdir, which they cannot leave."""

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
        """Runs a command in the background, with a terminal of its own if asked."""
        ...

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        """FileNotFoundError, IsADirectoryError and RequestRefused (too large, outside) as named."""
        ...

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None: ...

    async def list_files(self, path: str = ".") -> list[str]:
        """All regular files below a directory, relative to it, sorted. Symbolic links are not followed, and what is
        mounted below it (/proc, /dev, folders that the host lends) is not entered; RequestRefused beyond 100,000."""
        ...

    async def layout(self, paths: Sequence[str]) -> bytes:
        """Of everything below these folders its path, kind, mode and, of a link, where it leads, in an order that
        depends on nothing else; a folder that is not there has none. Equal layouts give equal bytes; what is mounted
        below is named, not entered. RequestRefused beyond 100,000 names."""
        ...

    async def read_tree(self, path: str = ".", *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """A tar of a directory, itself first, as ".": files, folders and links as they are. Of a file: it alone, under
        its own name. RequestRefused beyond the bounds."""
        ...

    async def write_tree(self, path: str, tar: bytes, *, max_bytes: int = 256 << 20, max_files: int = 10_000) -> None:
        """Unpacks a tar below a directory, made if absent. Members that name a place outside it, or would be written
        through a link, and devices are refused before anything is written; so are sizes beyond the bounds."""
        ...

    async def stats(self) -> BoxStats: ...

    async def snapshot(self) -> str:
        """Seals what the box has written into a new image and returns its id; the box goes on on top of it."""
        ...

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        """Children with the same files and no processes; BoxBusy unless nothing is writing or kill is set.

        `commands` of the parent says what would have to be run again for processes that a child should have."""
        ...

    @property
    def commands(self) -> list[str]:
        """The commands this box and its ancestors have been given, oldest first."""
        ...

    async def destroy(self) -> None:
        """Ends every process and removes every file and mount. Safe to call twice."""
        ...


@runtime_checkable
class Sandboxes(Protocol):
    """A backend: a store of images and the boxes made from them."""

    @property
    def features(self) -> frozenset[Feature]: ...

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        """Makes (or finds: images are content-addressed) an image: a base plus files under workdir."""
        ...

    async def import_image(self, source: Path) -> str:
        """A root file system from a folder, a tar (also compressed), or an OCI or `docker save` archive.

        ImageError names what is damaged."""
        ...

    async def pull_image(self, reference: str) -> str:
        """From an OCI registry, as "registry/name:tag" or "...@sha256:..."."""
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
        """Builds a Dockerfile (by default the one in the context); steps that were built before are found again."""
        ...

    async def create(self, spec: BoxSpec) -> Box: ...

    async def close(self) -> None:
        """Destroys every box of this backend instance."""
        ...


@dataclass(frozen=True, slots=True)
class BuildTerms:
    """What a build on trial may take, and what its commands find."""

    limits: Limits
    """Of each step; `cpu_seconds` of all together."""
    seconds: float
    """By the clock, of all together."""
    env: tuple[tuple[str, str], ...] = ()
    """Of the commands that are run, over the Dockerfile's own; no part of the image."""


@dataclass(frozen=True, slots=True)
class TriedBuild:
    sandboxes: Sandboxes
    """Has the image, until the trial ends."""
    image: str
    """Empty where the build failed."""
    failure: BuildFailed | None
    share: Share
    """Of all steps together: they have one clock."""
    memory_bytes: int
    """The most that a step held."""


@runtime_checkable
class TriesBuilds(Protocol):
    """A backend that can build without finding what was built before, and without leaving anything."""

    def try_build(
        self,
        context: Path,
        terms: BuildTerms,
        *,
        arguments: dict[str, str] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> AbstractAsyncContextManager[TriedBuild]:
        """All that was made for the build is gone at the end. What the Dockerfile does is never raised."""
        ...
