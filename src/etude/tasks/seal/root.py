"""The whole root of a box, listed and read in bounded pieces through the contract alone.

Contents come from the backend, never from a program of the box. Only where a folder is too large for one answer does
the image's own `find` name its entries, and its `sh` the mounts: before any agent was there. What is mounted over the
image (devices, and for the host base the host's system folders) is not of the task, and left out. So is what the user
that the agent will be may not read.
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
"""Of boxes that are sealed or read, and in which no agent is: what is read of one passes through its memory."""
PIECE_BYTES = 32 << 20
PIECE_FILES = 50_000
_MOUNTS = 'while read -r _ place kind _; do echo "$kind $place"; done < /proc/self/mounts'
_KERNELS = frozenset(("proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "securityfs"))
"""File systems that hold nothing of an image."""
_SECONDS = 120.0


def owner_of(sandboxes: Sandboxes) -> str:
    """The user that may read and remove everything of a box: where there is one id only, it is everybody's."""
    return "root" if Feature.ROOT_USER in sandboxes.features else ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a box's root: a folder or one file of it as a tar; or what cannot be one."""

    folder: str
    tar: bytes | None = None
    """Names in it are relative to the folder."""
    unread: str = ""
    """A file that is too large."""
    links: tuple[str, ...] = ()
    """Symbolic links right in a folder that is read entry by entry."""


@dataclass(frozen=True, slots=True)
class Root:
    box: Box
    user: str
    mounted: frozenset[str]
    """Places that are not of the image: neither listed nor read."""

    @classmethod
    async def of(cls, box: Box, user: str) -> Root:
        return cls(box, user, frozenset(place for _, place in await _mounts(box, user)) - {"/"})

    @classmethod
    async def below_image(cls, box: Box, user: str) -> dict[str, Root]:
        """What the box shows of the host's base, by where it is shown."""
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
        """All below `top` once, but for what lies at or below `without`; a file of more than `file_bytes` unread."""
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            with suppress(PermissionError):  # Of something below.
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
        """Is there something at or below this folder that must be left out?"""
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
        """Folders and files right below."""
        return await self._named(folder, "d"), await self._named(folder, "f")

    async def _named(self, folder: str, kind: str) -> list[str]:
        above = folder.rstrip("/")
        command = ["find", f"{above}/.", "!", "-name", ".", "-prune", "-type", kind, "-print0"]
        # `find` fails where the agent's user may not look: nothing there is for the agent to see.
        names = (await run(self.box, command, "", good=(0, 1))).split(b"\0")[:-1]
        return [f"{above}/{name.decode('utf-8', 'surrogateescape').rpartition('/')[2]}" for name in names]


async def _mounts(box: Box, user: str) -> list[tuple[str, str]]:
    """Kind and place of each."""
    lines = (await run(box, ["/bin/sh", "-c", _MOUNTS], user)).splitlines()
    pairs = (line.partition(b" ") for line in lines)
    return [
        (kind.decode(), codecs.escape_decode(place)[0].decode("utf-8", "surrogateescape")) for kind, _, place in pairs
    ]


async def run(
    box: Box, command: list[str], user: str, *, cwd: str = "/", stdin: bytes = b"", good: Collection[int] = (0,)
) -> bytes:
    """What a program of the image says; TaskError if it fails: a task's image must have what a shell needs."""
    done = await box.exec(command, timeout=_SECONDS, user=user, cwd=cwd, stdin=stdin)
    if done.code not in good or done.truncated:
        said = done.stderr[-300:].decode("utf-8", "replace").strip() or f"exit code {done.code}"
        reason = "it says too much" if done.truncated else done.limit or said
        shown = " ".join(command[:2])[:80]
        raise TaskError(f"the image cannot be sealed: `{shown}` in {cwd}: {reason}")
    return done.stdout


def members(tar: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """What a piece's tar holds, each with its bytes: of a hard link, those of the file that it names."""
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as opened:
        for info in opened:
            content = opened.extractfile(info) if info.isfile() or info.islnk() else None
            yield info, content.read() if content else b""
