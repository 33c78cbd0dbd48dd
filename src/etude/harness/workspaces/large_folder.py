"""Runs commands in a box over a folder that is too large to hold in memory.

The box gets the folder, as image layers, when the first command needs it; from then on it gets only what the view or
the user has changed since. After a command only what it may have changed is read back: files whose inode changed since
the last look, which nobody in the box can hide, and names that appeared or vanished. So the view shows what is really
there, as it does for a folder whose files are all read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from etude.harness.editing.diff import is_source
from etude.harness.search.file_state import UNSURE, State, state_of
from etude.harness.workspaces.boxed_commands import BoxedCommands
from etude.harness.workspaces.folder_files import (
    MAX_FILE_BYTES,
    SMALLER,
    FolderFiles,
    FolderTooLarge,
    Layered,
    is_text_name,
)
from etude.harness.workspaces.workspace import TOO_LARGE, WORKDIR, delete_file
from etude.sandbox.contract import Box, ExecResult, RequestRefused, Sandboxes

MOST_FILES = 90_000
"""A box lists at most 100,000 files, including those that commands create."""
MOST_BYTES = 4_000_000_000
LAYER_BYTES = 100_000_000
"""Bytes held in memory at once while the box's image is made."""
SLACK_SECONDS = 2
LOOK_SECONDS = 60.0

_LOOK = """
find . -maxdepth 0 -newerct @0 >/dev/null || exit 20
now=$(date +%s)
find . -type f -newerct "@$1" -print0 2>/dev/null
printf %s "$now"
"""
_UNKNOWN = b"\0 changed while a command ran"
"""Stands for an original that is no longer there, so that nothing is written over the file."""


class FolderRunner(BoxedCommands):
    """Runs commands over a large folder; `open_box` makes a box of an image."""

    def __init__(
        self, files: FolderFiles, sandboxes: Sandboxes, open_box: Callable[[str], Awaitable[Box]], *, base: str = "host"
    ) -> None:
        """Raises FolderTooLarge if the folder exceeds MOST_FILES or MOST_BYTES."""
        super().__init__()
        size = files.size()
        if len(files) > MOST_FILES or size > MOST_BYTES:
            raise FolderTooLarge(
                f"{files.folder} holds {len(files)} files and {size / 1e6:.0f} MB, commands can be run over "
                f"{MOST_FILES} and {MOST_BYTES / 1e6:.0f} MB: go without a shell (etude agent --no-shell), or {SMALLER}"
            )
        self._files = files
        self._sandboxes = sandboxes
        self._open_box = open_box
        self._base = base
        self._given: dict[str, State] = {}
        """State of each of the folder's files when the box was given it."""
        self._unsure: dict[str, bytes] = {}
        """Content hash of files that were modified so shortly before that their state cannot show another change."""
        self._there: dict[str, bytes | None] = {}
        """What the box was given, or has made, since then in place of the folder's file; None for a deleted one."""
        self._withheld: set[str] = set()
        """Files that had become too large to read before the box was given them."""
        self._looked = 0

    async def aside(self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float) -> list[ExecResult]:
        raise RequestRefused("the folder is too large for a copy of all its files")

    async def _synced(self, files: Mapping[str, bytes]) -> Box:
        if self._box is None:
            self._box = await self._open_box(await self._image())
            _, self._looked = await _newer(self._box, 2**32)
        changes = files.changes if isinstance(files, Layered) else {}
        wanted = dict(changes)
        for path in await asyncio.to_thread(self._moved):
            if path not in changes:
                data = files.get(path)
                if data is None or len(data) <= MAX_FILE_BYTES:
                    wanted[path] = data
        for path, data in wanted.items():
            if path in self._there and self._there[path] == data:
                continue
            if data is not None:
                await self._box.write_file(path, data)
            elif path in self._given or path in self._there:
                with suppress(FileNotFoundError):
                    await delete_file(self._box, path)
            self._there[path] = data
        return self._box

    def _moved(self) -> list[str]:
        return [path for path in self._given if not self._is_as_given(path)]

    def _is_as_given(self, path: str) -> bool:
        """Whether the folder's file is still what the box was given."""
        if state_of(self._files.folder / path) == self._given[path]:
            return True
        if path not in self._unsure:
            return False
        try:
            state, data = self._files.read_apart(path)
        except KeyError:
            return False
        if _hash(data) != self._unsure[path]:
            return False
        self._given[path] = state
        if state != UNSURE:
            del self._unsure[path]
        return True

    def _forget(self) -> None:
        self._given, self._unsure, self._there, self._withheld = {}, {}, {}, set()

    async def _read_back(self, box: Box, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        newer, looked = await _newer(box, self._looked)
        names = {path for path in await box.list_files(".") if is_source(path) and is_text_name(path)}
        known = set(files) - self._withheld
        found: dict[str, bytes | None] = dict.fromkeys(known - names)
        for path in sorted((newer & names) | (names - known)):
            try:
                data = await box.read_file(path, max_bytes=MAX_FILE_BYTES)
            except PermissionError:
                continue  # made unreadable by the agent: it stays as last seen
            except RequestRefused:
                data = TOO_LARGE
            except OSError:
                continue  # deleted meanwhile: the agent's background commands keep running
            if files.get(path) != data:
                found[path] = data
        self._looked = looked
        if not found:
            return files
        layered = files if isinstance(files, Layered) else Layered(self._files)
        for path in found.keys() - layered.changes.keys():
            self._keep(path)
        self._there |= found
        return layered.put_all(found)

    def _keep(self, path: str) -> None:
        """Record what the box had at the path before the command as what the agent started from."""
        if path in self._there:
            before = self._there[path]
            if before is not None:
                self._files.keep_as(path, before)
        elif path in self._given and not self._is_as_given(path):
            self._files.keep_as(path, _UNKNOWN)

    async def _image(self) -> str:
        """Make an image of all files, in several layers, so that few files are held in memory at once."""
        image, layer, size = self._base, dict[str, bytes](), 0
        for path in self._files:
            try:
                state, data = await asyncio.to_thread(self._files.read_apart, path)
            except KeyError:
                continue
            if len(data) > MAX_FILE_BYTES:
                self._withheld.add(path)
                continue
            self._given[path] = state
            if state == UNSURE:
                self._unsure[path] = _hash(data)
            layer[path] = data
            size += len(data)
            if size >= LAYER_BYTES:
                image = await self._sandboxes.add_image(layer, base=image, workdir=WORKDIR)
                layer, size = {}, 0
        return await self._sandboxes.add_image(layer, base=image, workdir=WORKDIR)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


async def _newer(box: Box, since: int) -> tuple[set[str], int]:
    """The files changed since `since` (seconds by the box's clock), and the time to pass at the next look."""
    said = await box.exec(["sh", "-c", _LOOK, "look", str(since)], timeout=LOOK_SECONDS)
    *paths, now = said.stdout.split(b"\0")
    if said.code or said.truncated or not now.isdigit():
        raise RequestRefused("what commands change cannot be told: it takes GNU find, and no more than 1 MB of names")
    return {os.fsdecode(path).removeprefix("./") for path in paths}, int(now) - SLACK_SECONDS
