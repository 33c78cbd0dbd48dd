"""Lists and reads the whole file system of a box in bounded pieces, using only the sandbox contract.

File contents come from the backend, never from a program in the box. Only for a folder too large for one answer does
the image's own `find` list the entries, and its `sh` the mounts; both run before any agent was in the box. Mounts over
the image (devices, and the host's system folders on the host base) are not part of the task and are skipped. So are
files that the agent's user may not read.
"""

from __future__ import annotations

import codecs
import io
import tarfile
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from etude.sandbox.contract import Box, Feature, Limits, RequestRefused, Sandboxes
from etude.tasks.seal.leftovers import is_below
from etude.tasks.task import TaskError

LIMITS = Limits(memory_mb=2048, processes=256, cpu_seconds=600, file_mb=2048, disk_mb=8192, output_bytes=64 << 20)
"""Limits of the boxes that images are sealed or read in. No agent is in them, and everything read passes through their
memory."""
PIECE_BYTES = 32 << 20
PIECE_FILES = 50_000
_MOUNTS = 'while read -r _ place kind _; do echo "$kind $place"; done < /proc/self/mounts'
_KERNELS = frozenset(("proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "securityfs"))
"""File systems that hold nothing of an image."""
_SECONDS = 120.0


def owner_of(sandboxes: Sandboxes) -> str:
    """The user that may read and remove everything in a box. Where a box has only one user id, the default user may."""
    return "root" if Feature.ROOT_USER in sandboxes.features else ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a box's root: a folder or a single file as a tar, or the name of what could not be read."""

    folder: str
    tar: bytes | None = None
    """The contents; member names are relative to `folder`."""
    unread: str = ""
    """Path of a file that is too large to read."""
    links: tuple[str, ...] = ()
    """Symbolic links directly in a folder that is read entry by entry."""


@dataclass(frozen=True, slots=True)
class Root:
    box: Box
    user: str
    mounted: frozenset[str]
    """Mount points that are not part of the image; they are neither listed nor read."""

    @classmethod
    async def of(cls, box: Box, user: str) -> Root:
        return cls(box, user, frozenset(place for _, place in await _mounts(box, user)) - {"/"})

    @classmethod
    async def below_image(cls, box: Box, user: str) -> dict[str, Root]:
        """The parts of the host's base that the box shows, by their mount points."""
        mounts = await _mounts(box, user)
        places = {place for kind, place in mounts if kind not in _KERNELS} - {"/"}
        return {place: cls(box, user, frozenset({other for _, other in mounts} - {place, "/"})) for place in places}

    async def files(self, top: str = "/") -> list[str]:
        """Absolute paths of all regular files."""
        found: list[str] = []
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            names = None if self._split(folder, ()) else await self._listed(folder)
            if names is not None:
                found += (f"{folder.rstrip('/')}/{name}" for name in names)
                continue
            folders, files = await self._entries(folder)
            waiting += (name for name in folders if name not in self.mounted)
            found += (name for name in files if name not in self.mounted)
        return sorted(found)

    async def pieces(
        self, top: str = "/", *, without: Collection[str] = (), file_bytes: int = PIECE_BYTES
    ) -> AsyncIterator[Piece]:
        """Yield everything below `top` once, except what lies at or below `without`. Files of more than `file_bytes`
        are yielded unread."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            with suppress(PermissionError):  # Something below may not be read.
                if not self._split(folder, without) and (tar := await self._tar(folder, PIECE_BYTES)) is not None:
                    yield Piece(folder, tar)
                    continue
            folders, files = await self._entries(folder)
            left_out = {*self.mounted, *without}
            waiting += sorted((name for name in folders if name not in left_out), reverse=True)
            yield Piece(folder, links=tuple(await self._named(folder, "l")))
            for name in files:
                with suppress(PermissionError):
                    if name not in left_out:
                        tar = await self._tar(name, file_bytes)
                        yield Piece(folder, tar) if tar is not None else Piece(folder, unread=name)

    def _split(self, folder: str, without: Iterable[str]) -> bool:
        """Whether anything at or below this folder must be skipped."""
        return any(is_below(place, folder.rstrip("/")) for place in (*self.mounted, *without))

    async def _listed(self, folder: str) -> list[str] | None:
        try:
            return await self.box.list_files(folder)
        except (RequestRefused, PermissionError):
            return None

    async def _tar(self, path: str, max_bytes: int) -> bytes | None:
        try:
            return await self.box.read_tree(path, max_bytes=max_bytes, max_files=PIECE_FILES)
        except RequestRefused:
            return None

    async def _entries(self, folder: str) -> tuple[list[str], list[str]]:
        """The folders and the files directly in a folder."""
        return await self._named(folder, "d"), await self._named(folder, "f")

    async def _named(self, folder: str, kind: str) -> list[str]:
        above = folder.rstrip("/")
        command = ["find", f"{above}/.", "!", "-name", ".", "-prune", "-type", kind, "-print0"]
        # `find` exits with 1 where the agent's user may not look; the agent cannot see what is there either.
        names = (await run(self.box, command, "", good=(0, 1))).split(b"\0")[:-1]
        return [f"{above}/{name.decode('utf-8', 'surrogateescape').rpartition('/')[2]}" for name in names]


async def _mounts(box: Box, user: str) -> list[tuple[str, str]]:
    """File system type and mount point of each mount."""
    lines = (await run(box, ["/bin/sh", "-c", _MOUNTS], user)).splitlines()
    pairs = (line.partition(b" ") for line in lines)
    return [
        (kind.decode(), codecs.escape_decode(place)[0].decode("utf-8", "surrogateescape")) for kind, _, place in pairs
    ]


async def run(
    box: Box, command: list[str], user: str, *, cwd: str = "/", stdin: bytes = b"", good: Collection[int] = (0,)
) -> bytes:
    """Run a program of the image and return its output. Raises TaskError if it fails: the image must have the basic
    shell tools."""
    done = await box.exec(command, timeout=_SECONDS, user=user, cwd=cwd, stdin=stdin)
    if done.code not in good or done.truncated:
        said = done.stderr[-300:].decode("utf-8", "replace").strip() or f"exit code {done.code}"
        reason = "it says too much" if done.truncated else done.limit or said
        shown = " ".join(command[:2])[:80]
        raise TaskError(f"the image cannot be sealed: `{shown}` in {cwd}: {reason}")
    return done.stdout


def members(tar: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The members of a piece's tar, each with its bytes. A hard link has the bytes of its target."""
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as opened:
        for info in opened:
            content = opened.extractfile(info) if info.isfile() or info.islnk() else None
            yield info, content.read() if content else b""
