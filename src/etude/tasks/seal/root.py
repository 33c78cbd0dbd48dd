"""Lists and reads the whole file system of a box in bounded pieces, using only the sandbox contract.

File contents come from the backend, never from a program in the box. Two programs of the image are used, both before
any agent was in the box: `find` lists the entries of a folder that is too large for one answer, and `sh` lists the
mounts. Mounts over the image (devices, and the host's system folders if boxes show them) are not part of the task and
are skipped. Files that the agent's user may not read are skipped too.
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
"""Limits of boxes in which images are sealed or read, and no agent runs. All data read passes through their memory."""
PIECE_BYTES = 32 << 20
PIECE_FILES = 50_000
_MOUNTS = 'while read -r _ place kind _; do echo "$kind $place"; done < /proc/self/mounts'
_VIRTUAL_FILE_SYSTEMS = frozenset(
    ("proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "securityfs")
)
"""Types of file systems that contain no files of an image."""
_SECONDS = 120.0


def owner_of(sandboxes: Sandboxes) -> str:
    """Return who may read and remove everything in a box: root, or the default user ("") if boxes have no root."""
    return "root" if Feature.ROOT_USER in sandboxes.features else ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a box's files: a folder or a single file as a tar, the links of a folder whose files come one by one,
    or the path of a file too large to read."""

    folder: str
    tar: bytes | None = None
    """The files of this piece as a tar, with names relative to `folder`. None if the piece has links or an unread
    path."""
    unread: str = ""
    """Path of a file that was too large to read; empty for other pieces."""
    links: tuple[str, ...] = ()
    """Symbolic links directly in `folder`, if its files come as separate pieces. If the whole folder comes as one tar,
    its links are in that tar."""


@dataclass(frozen=True, slots=True)
class Root:
    """The file system of one box, as the agent's user reads it. `user` runs commands that need more rights."""

    box: Box
    user: str
    mounted: frozenset[str]
    """Mount points that are not part of the image, which are neither listed nor read."""

    @classmethod
    async def of(cls, box: Box, user: str) -> Root:
        return cls(box, user, frozenset(place for _, place in await _mounts(box, user)) - {"/"})

    async def read(self, path: str) -> bytes:
        """Return a file's contents; empty if it is missing, unreadable or larger than 16 MB."""
        try:
            return await self.box.read_file(path, max_bytes=16 << 20)
        except (OSError, RequestRefused):
            return b""

    async def files(self) -> list[str]:
        found: list[str] = []
        waiting = ["/"]
        while waiting:
            folder = waiting.pop()
            names = None if self._has_skipped_paths(folder, ()) else await self._listed(folder)
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
        """Yield everything below `top` once, except paths at or below `without`. Files of more than `file_bytes` are
        yielded unread."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            with suppress(PermissionError):  # The agent's user may not read a path below this one.
                if (
                    not self._has_skipped_paths(folder, without)
                    and (tar := await self._tar(folder, PIECE_BYTES)) is not None
                ):
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

    def _has_skipped_paths(self, folder: str, without: Iterable[str]) -> bool:
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
        return await self._named(folder, "d"), await self._named(folder, "f")

    async def _named(self, folder: str, kind: str) -> list[str]:
        above = folder.rstrip("/")
        command = ["find", f"{above}/.", "!", "-name", ".", "-prune", "-type", kind, "-print0"]
        # `find` exits with 1 if the agent's user may not list a folder. The agent cannot list it either.
        names = (await run(self.box, command, "", good=(0, 1))).split(b"\0")[:-1]
        return [f"{above}/{name.decode('utf-8', 'surrogateescape').rpartition('/')[2]}" for name in names]


async def shows_base(box: Box, user: str) -> bool:
    """Return whether the box shows folders of the host, which are not part of its image."""
    return any(place != "/" and kind not in _VIRTUAL_FILE_SYSTEMS for kind, place in await _mounts(box, user))


async def _mounts(box: Box, user: str) -> list[tuple[str, str]]:
    lines = (await run(box, ["/bin/sh", "-c", _MOUNTS], user)).splitlines()
    pairs = (line.partition(b" ") for line in lines)
    return [
        (kind.decode(), codecs.escape_decode(place)[0].decode("utf-8", "surrogateescape")) for kind, _, place in pairs
    ]


async def run(
    box: Box, command: list[str], user: str, *, cwd: str = "/", stdin: bytes = b"", good: Collection[int] = (0,)
) -> bytes:
    """Run a program of the image. Raises TaskError if its output is too large, or if its exit code is not in `good`,
    for example because the image lacks the basic shell tools."""
    done = await box.exec(command, timeout=_SECONDS, user=user, cwd=cwd, stdin=stdin)
    if done.code not in good or done.truncated:
        problem = done.stderr[-300:].decode("utf-8", "replace").strip() or f"exit code {done.code}"
        reason = "its output is too large" if done.truncated else done.limit or problem
        shown = " ".join(command[:2])[:80]
        raise TaskError(f"the image cannot be sealed: `{shown}` in {cwd}: {reason}")
    return done.stdout


def members(tar: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the members of a tar with their contents. A hard link has the contents of its target."""
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as opened:
        for info in opened:
            content = opened.extractfile(info) if info.isfile() or info.islnk() else None
            yield info, content.read() if content else b""
