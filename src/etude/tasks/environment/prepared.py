"""A prepared environment, and how its workspace is read from a box."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from etude.sandbox.contract import BoxSpec, Sandboxes
from etude.tasks.change import Change, change_of
from etude.tasks.fresh_box import fresh_box
from etude.tasks.seal import Removed, Sealed
from etude.tasks.seal.leftovers import folders_above
from etude.tasks.seal.root import LIMITS, Root, members, owner_of, shows_base
from etude.tasks.task import TaskError

MAX_FILES = 100_000
MAX_BYTES = 512 << 20
"""Maximum size of a workspace, in bytes. Workspaces stay in memory, because every agent's diff is applied to them."""
_MAX_FILE = 64 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """An environment that is ready for use: its sealed image and the contents of its workspace."""

    image: str
    workdir: str
    files: Mapping[str, bytes]
    """Contents of the files in the workdir, without its `.git`. Agents' diffs are relative to these files."""
    executable: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    """Paths of the workspace's symbolic links. No agent's change may go through one."""
    folders: frozenset[str] = frozenset()
    """The workspace's folders without files. No new file of an agent's change may replace one."""
    removed: tuple[Removed, ...] = ()
    """What sealing removed from the image."""
    bare: bool = False
    """Whether the image holds only `files`, so that there was nothing to seal."""
    on_base: bool = False
    """Whether boxes show the host's system folders, which are not part of the image."""

    def change(self, diff: str, protects: Callable[[str], bool]) -> Change:
        """Return the change that a diff makes to this workspace (see `change_of`)."""
        return change_of(
            diff,
            self.files,
            protects,
            executable=self.executable,
            links=self.links,
            folders=self.folders,
        )


@dataclass(slots=True)
class _Workspace:
    files: dict[str, bytes] = field(default_factory=dict)
    executable: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    size: int = 0

    def add(self, prefix: str, tar: bytes) -> None:
        for info, content in members(tar):
            path = prefix + info.name
            if info.issym():
                self.links.add(path)
            elif info.isdir():
                self.folders.add(path.removesuffix(".").rstrip("/"))
            elif info.isfile() or info.islnk():
                self.files[path] = content
                self.size += len(content)
                if info.mode & 0o100:
                    self.executable.add(path)
        if len(self.files) > MAX_FILES or self.size > MAX_BYTES:
            raise TaskError(
                f"the workspace has more than {MAX_FILES} files or {MAX_BYTES >> 20} MB: choose a smaller workdir, or "
                "install what it depends on outside of it"
            )

    def empty_folders(self) -> frozenset[str]:
        return frozenset(self.folders) - {folder for path in self.files for folder in folders_above(path)} - {""}


async def read_prepared(sandboxes: Sandboxes, sealed: Sealed) -> Prepared:
    """Read the workspace of a sealed image. Raises RequestRefused if the image no longer exists."""
    spec = BoxSpec(sealed.image, workdir=sealed.workdir, limits=LIMITS, name="read")
    async with fresh_box(sandboxes, spec) as box:
        root = await Root.of(box, owner_of(sandboxes))
        on_base = await shows_base(box, owner_of(sandboxes))
        found = _Workspace()
        without = (f"{sealed.workdir}/.git",)
        async for piece in root.pieces(sealed.workdir, without=without, file_bytes=_MAX_FILE):
            if piece.unread:
                raise TaskError(f"{piece.unread} has more than {_MAX_FILE >> 20} MB: keep it outside of the workspace")
            found.links.update(link.removeprefix(f"{sealed.workdir}/") for link in piece.links)
            prefix = f"{piece.folder.removeprefix(sealed.workdir)}/".lstrip("/")
            if piece.tar:
                await asyncio.to_thread(found.add, prefix, piece.tar)
    return Prepared(
        sealed.image,
        sealed.workdir,
        found.files,
        frozenset(found.executable),
        frozenset(found.links),
        found.empty_folders(),
        sealed.removed,
        on_base=on_base,
    )
