"""Runs commands in a box on a folder that is too large to be held in memory.

When the first command needs the box, the folder is copied into it as image layers. The agent's changes are kept in
memory, not in the folder. Before later commands, only files that the agent or the user has changed are written to the
box. After a command, only files that it may have changed are read back. These are new files, and files with a ctime
newer than the last check; no process in the box can falsify a ctime. Files that vanished count as deleted. So the agent
sees the same contents as if all files were read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from etude.harness.editing.diff import is_source
from etude.harness.search.file_state import UNSURE, FileState, file_state_of
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
"""Maximum number of files in the folder. A box lists at most 100,000 files, including those that commands create."""
MOST_BYTES = 4_000_000_000
"""Maximum total size of the folder's files."""
LAYER_BYTES = 100_000_000
"""Size at which an image layer is complete. A layer is held in memory while it is built."""
SLACK_SECONDS = 2
"""Overlap of two successive checks for changed files. The box's clock is read in whole seconds, so without an overlap a
change could be missed."""
LOOK_SECONDS = 60.0

_LOOK = """
find . -maxdepth 0 -newerct @0 >/dev/null || exit 20
now=$(date +%s)
find . -type f -newerct "@$1" -print0 2>/dev/null
printf %s "$now"
"""
_UNKNOWN = b"\0 changed while a command ran"
"""Placeholder for original contents that are no longer available. No file has these contents, so the check before a
write fails, and the user's file is not overwritten."""


class FolderRunner(BoxedCommands):
    def __init__(
        self, files: FolderFiles, sandboxes: Sandboxes, open_box: Callable[[str], Awaitable[Box]], *, base: str = "host"
    ) -> None:
        """Raises FolderTooLarge if the folder exceeds MOST_FILES or MOST_BYTES."""
        super().__init__()
        size = files.size()
        if len(files) > MOST_FILES or size > MOST_BYTES:
            raise FolderTooLarge(
                f"{files.folder} has {len(files)} files and {size / 1e6:.0f} MB; commands can run on at most "
                f"{MOST_FILES} files and {MOST_BYTES / 1e6:.0f} MB: work without a shell (etude agent --no-shell), or "
                f"{SMALLER}"
            )
        self._files = files
        self._sandboxes = sandboxes
        self._open_box = open_box
        self._base = base
        self._state_in_image: dict[str, FileState] = {}
        """State of each file of the user's folder when it was copied into the box's image."""
        self._unsure: dict[str, bytes] = {}
        """Content hash of each file whose state at the copy into the image is UNSURE: the state cannot show whether the
        file has changed since, but the hash can."""
        self._contents_in_box: dict[str, bytes | None] = {}
        """Contents of files that were written to the box or changed in it since it was created (None: deleted)."""
        self._too_large: set[str] = set()
        """Files that were too large for the workspace when the image was built, and so were left out of it."""
        self._checked = 0
        """Unix time by the box's clock. The next check looks for files that changed after it."""

    async def run_in_scratch(
        self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float
    ) -> list[ExecResult]:
        raise RequestRefused("the folder is too large for a copy of all its files")

    async def _synced(self, files: Mapping[str, bytes]) -> Box:
        if self._box is None:
            self._box = await self._open_box(await self._image())
            _, self._checked = await _newer(self._box, 2**32)
        changes = files.changes if isinstance(files, Layered) else {}
        wanted = dict(changes)
        for path in await asyncio.to_thread(self._moved):
            if path not in changes:
                data = files.get(path)
                if data is None or len(data) <= MAX_FILE_BYTES:
                    wanted[path] = data
        for path, data in wanted.items():
            if path in self._contents_in_box and self._contents_in_box[path] == data:
                continue
            if data is not None:
                await self._box.write_file(path, data)
            elif path in self._state_in_image or path in self._contents_in_box:
                with suppress(FileNotFoundError):
                    await delete_file(self._box, path)
            self._contents_in_box[path] = data
        return self._box

    def _moved(self) -> list[str]:
        return [path for path in self._state_in_image if not self._is_as_given(path)]

    def _is_as_given(self, path: str) -> bool:
        if file_state_of(self._files.folder / path) == self._state_in_image[path]:
            return True
        if path not in self._unsure:
            return False
        try:
            state, data = self._files.read_uncached(path)
        except KeyError:
            return False
        if _hash(data) != self._unsure[path]:
            return False
        self._state_in_image[path] = state
        if state != UNSURE:
            del self._unsure[path]
        return True

    def _forget(self) -> None:
        self._state_in_image, self._unsure, self._contents_in_box, self._too_large = {}, {}, {}, set()

    async def _read_back(self, box: Box, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        newer, looked = await _newer(box, self._checked)
        names = {path for path in await box.list_files(".") if is_source(path) and is_text_name(path)}
        known = set(files) - self._too_large
        found: dict[str, bytes | None] = dict.fromkeys(known - names)
        for path in sorted((newer & names) | (names - known)):
            try:
                data = await box.read_file(path, max_bytes=MAX_FILE_BYTES)
            except PermissionError:
                continue  # the agent made the file unreadable: it keeps its last known contents
            except RequestRefused:
                data = TOO_LARGE
            except OSError:
                continue  # a background command of the agent has just deleted the file
            if files.get(path) != data:
                found[path] = data
        self._checked = looked
        if not found:
            return files
        layered = files if isinstance(files, Layered) else Layered(self._files)
        for path in found.keys() - layered.changes.keys():
            self._keep(path)
        self._contents_in_box |= found
        return layered.put_all(found)

    def _keep(self, path: str) -> None:
        """Store, as the file's original, its contents before the last command changed it; _UNKNOWN if they are lost. If
        the user's file on disk still has these contents, nothing is stored."""
        if path in self._contents_in_box:
            before = self._contents_in_box[path]
            if before is not None:
                self._files.set_original(path, before)
        elif path in self._state_in_image and not self._is_as_given(path):
            self._files.set_original(path, _UNKNOWN)

    async def _image(self) -> str:
        """Build an image of all files, in several layers, so that only one layer's files are in memory at a time."""
        image, layer, size = self._base, dict[str, bytes](), 0
        for path in self._files:
            try:
                state, data = await asyncio.to_thread(self._files.read_uncached, path)
            except KeyError:
                continue
            if len(data) > MAX_FILE_BYTES:
                self._too_large.add(path)
                continue
            self._state_in_image[path] = state
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
    """Return the box's files that changed after `since`, and the value of `since` for the next call."""
    result = await box.exec(["sh", "-c", _LOOK, "look", str(since)], timeout=LOOK_SECONDS)
    *paths, now = result.stdout.split(b"\0")
    if result.code or result.truncated or not now.isdigit():
        raise RequestRefused(
            "cannot find the files that commands change: that needs GNU find, and at most 1 MB of changed names"
        )
    return {os.fsdecode(path).removeprefix("./") for path in paths}, int(now) - SLACK_SECONDS
