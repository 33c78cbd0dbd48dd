"""The Sandbox noun: a box with its own files, processes and (no) network, made from an image, forkable.

Every backend keeps this contract; tests/contract/sandbox.py is the suite that any of them, also a third party's, must
pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class SandboxError(Exception):
    """The sandbox could not do what was asked; says what was expected, found, and what to do."""


class SandboxLost(SandboxError):
    """The box is gone (killed, host fault). Never the agent's fault: the rollout is retried, then masked."""


class SandboxUnavailable(SandboxError):
    """This host cannot run the backend; the message names the missing capability and the knob that grants it."""


class BoxBusy(SandboxError):
    """A process holds files open for writing; it is named in the message. `fork(kill=True)` ends it."""


class RequestRefused(SandboxError):
    """The request breaks a rule of the box (path outside it, file too large); nothing was done."""


class DiskFull(SandboxError):
    """The box's or the host's disk is full."""


class Feature(StrEnum):
    FORK = "fork"
    SNAPSHOT = "snapshot"
    NO_NETWORK = "no_network"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    SECOND_USER = "second_user"
    """Commands can run under a user that the agent's processes cannot touch: what a sealed grader needs."""
    PTY = "pty"
    BACKGROUND = "background"


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
class BoxSpec:
    image: str
    """An image id of the backend's store."""
    workdir: str = "/work"
    env: tuple[tuple[str, str], ...] = ()
    limits: Limits = field(default_factory=Limits)
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


@runtime_checkable
class Box(Protocol):
    """One running sandbox. Paths are absolute inside the box, or relative to its workdir."""

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
        user: str = "agent",
    ) -> ExecResult:
        """Runs a command (a string goes to /bin/sh -c) and ends its whole process tree when it returns or times out.

        `user` is "agent" or "grader"; a backend without SECOND_USER refuses "grader".
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        """FileNotFoundError, IsADirectoryError and RequestRefused (too large, outside) as named."""
        ...

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None: ...

    async def list_files(self, path: str = ".") -> list[str]:
        """All regular files below a directory, relative to it, sorted; symbolic links are not followed."""
        ...

    async def snapshot(self) -> str:
        """Seals what the box has written into a new image and returns its id; the box goes on on top of it."""
        ...

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        """Children with the same files and no processes; BoxBusy unless nothing is writing or kill is set."""
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

    async def create(self, spec: BoxSpec) -> Box: ...

    async def close(self) -> None:
        """Destroys every box of this backend instance."""
        ...
