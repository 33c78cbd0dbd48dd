"""Runs the commands of an overlay workspace in a box, which is created when the first command needs it.

In a box without network, the result of a command that uses neither the clock nor random numbers depends only on the
files. The task's author lists such commands, and the rollouts of a worker may share their results (`ExecMemo`). A
result is shared only if the run had no side effect: it left every file, mode and name unchanged, in the workspace and
in the folders for temporary files. Once a rollout has run a command with side effects, it neither uses nor adds shared
results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from etude.harness.search.grep_query import Searcher
from etude.harness.workspaces.boxed_commands import AGENTS_DOING, BoxedCommands
from etude.harness.workspaces.folder_files import FolderFiles
from etude.harness.workspaces.folder_grep import searcher_of
from etude.harness.workspaces.result_cache import Memo
from etude.harness.workspaces.scratch_tree import BoxScratch
from etude.harness.workspaces.terminal import TerminalHost
from etude.harness.workspaces.workspace import WORKDIR, OverlayWorkspace, delete_file, read_tree
from etude.sandbox.contract import Box, ExecResult

_WRITABLE = (".", "/tmp", "/var/tmp", "/dev/shm")
_MAX_KEPT_BYTES = 65_536
"""Maximum number of output bytes of a command whose result is cached."""
MAX_READ_FILES = 20_000
MAX_READ_BYTES = 200_000_000
"""MAX_READ_FILES and MAX_READ_BYTES limit the number and total size of the files of a workspace with commands, since
such files are kept in memory more than once."""

ExecKey = tuple[str, bytes, str, float]


class ExecMemo(Memo[ExecKey, ExecResult]):
    def __init__(self, size: int = 4096) -> None:
        super().__init__(size)
        self.fresh_layouts: dict[str, bytes] = {}
        """Layout (names and modes of all files) of a new box, by image."""


class BoxRunner(BoxedCommands):
    def __init__(
        self,
        image: str,
        start: Mapping[str, bytes],
        open_box: Callable[[], Awaitable[Box]],
        memo: ExecMemo | None = None,
        deterministic: Collection[str] = (),
    ) -> None:
        """`start` are the image's files. `memo` is a cache of command results, which may be shared with other runners;
        only results of the commands in `deterministic` are stored in it."""
        super().__init__()
        self._image = image
        self._start = start
        self._open_box = open_box
        self._memo = memo
        self._deterministic = deterministic
        self._scratch: BoxScratch | None = None
        self._held: Mapping[str, bytes] = start
        """The files in the box; those of the image if there is no box."""
        self._layout: bytes | None = None
        """The box's layout when last read; None if it may have changed since then."""

    async def _carry_out(
        self, files: Mapping[str, bytes], command: str, timeout: float
    ) -> tuple[ExecResult, Mapping[str, bytes]]:
        really = super()._carry_out
        if self._memo is None:
            return await really(files, command, timeout)
        after = files

        async def compute() -> tuple[ExecResult, bool]:
            nonlocal after
            before = await self._look(files)
            result, after = await really(files, command, timeout)
            self._layout = None
            pure = after is files and before is not None and before == await self._look(after)
            if not pure:
                # The box may now contain changes that the workspace's files do not show.
                self._memo = None
            small = len(result.stdout) + len(result.stderr) <= _MAX_KEPT_BYTES
            shared = command in self._deterministic
            return result, shared and pure and small and not result.timed_out and not result.limit

        result = await self._memo.get((self._image, _digest(files), command, timeout), compute)
        return result, after

    async def enter(self, files: Mapping[str, bytes]) -> TerminalHost:
        # A process in a terminal may change files at any time.
        self._memo = None
        return await super().enter(files)

    async def run_in_scratch(
        self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float
    ) -> list[ExecResult]:
        # The scratch tree remains in the box, where later commands can see it.
        self._memo = None
        async with self._box_may_die():
            box = await self._entered(states[-1])
            self._scratch = self._scratch or BoxScratch(box)
            return await self._scratch.run(states, command, timeout=timeout)

    async def _synced(self, files: Mapping[str, bytes]) -> Box:
        if self._box is None:
            self._box = await self._open_box()
            self._layout = self._memo.fresh_layouts.get(self._image) if self._memo else None
        for path in self._held.keys() - files.keys():
            self._layout = None
            # A command of the agent may already have deleted the file.
            with suppress(FileNotFoundError):
                await delete_file(self._box, path)
        for path, data in files.items():
            if self._held.get(path) != data:
                if path not in self._held:
                    self._layout = None
                await self._box.write_file(path, data)
        self._held = files
        return self._box

    async def _read_back(self, box: Box, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        after = await read_tree(box, files)
        self._held = after
        return files if after == files else after

    def _forget(self) -> None:
        self._held, self._layout, self._memo, self._scratch = self._start, None, None, None

    async def _look(self, files: Mapping[str, bytes]) -> bytes | None:
        """Write the files to the box and return its layout; None if files that the agent left there prevent this."""
        fresh = self._box is None and files.keys() == self._held.keys()
        try:
            box = await self._synced(files)
        except AGENTS_DOING:
            return None
        if self._layout is not None:
            return self._layout
        try:
            self._layout = await box.layout(_WRITABLE)
        except AGENTS_DOING:
            return None
        if fresh and self._memo:
            self._memo.fresh_layouts[self._image] = self._layout
        return self._layout


def _digest(files: Mapping[str, bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(files):
        name, data = path.encode("utf-8", "surrogateescape"), files[path]
        digest.update(b"%d %d " % (len(name), len(data)) + name + data)
    return digest.digest()


def lazy_workspace(
    image: str,
    start: Mapping[str, bytes],
    open_box: Callable[[], Awaitable[Box]],
    memo: ExecMemo | None = None,
    deterministic: Collection[str] = (),
    workdir: str = WORKDIR,
    searcher: Searcher | None = None,
) -> OverlayWorkspace:
    """Return a workspace that has an image's files in memory and creates a box when a command needs one. `memo` shares
    the results of the commands in `deterministic`, whose output depends on the files alone."""
    return OverlayWorkspace(start, BoxRunner(image, start, open_box, memo, deterministic), workdir, searcher)


def folder_workspace(folder: Path) -> OverlayWorkspace:
    """Return a copy-on-write view of a folder, without a shell, which reads files when they are needed."""
    files = FolderFiles(folder)
    return OverlayWorkspace(files, searcher=searcher_of(files))
