"""The user's own folder as a workspace: the only thing between the agent and the folder is the user's permission.

Invariants: every file change and every command passes `Permissions.agree` before it happens. This is checked here,
below all tools, so that no tool can forget to ask. What is done is exactly what was agreed to. A file that changed
since it was last read is not overwritten, and nothing is written through a symlink that leads out of the folder, nor
into version control.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from etude.harness.editing.apply import ApplyConflict, leads_out, write_changes
from etude.harness.editing.diff import binary_changes, is_source, unified_diff
from etude.harness.permissions import Permissions, Wish
from etude.harness.search.grep_query import Line, Query
from etude.harness.workspaces.box_runner import MAX_READ_BYTES, MAX_READ_FILES
from etude.harness.workspaces.folder_files import MAX_FILE_BYTES, FolderNow, FolderTooLarge, is_text_name
from etude.harness.workspaces.folder_grep import searcher_of
from etude.harness.workspaces.scratch_tree import HostScratch
from etude.harness.workspaces.terminal import Heard, Terminals
from etude.harness.workspaces.unboxed_commands import HostPlace, host_exec
from etude.harness.workspaces.workspace import OverlayWorkspace, clean_path
from etude.sandbox.contract import ExecResult, RequestRefused

T = TypeVar("T")


class FolderWorkspace(OverlayWorkspace):
    """A workspace on the folder itself. `changed` and `diff` count from the folder's state when this was made, and
    report only what the agent or its commands changed. The agent sees what the user changes meanwhile, but that is the
    user's own business."""

    def __init__(self, folder: Path, permissions: Permissions) -> None:
        self._folder = folder.resolve()
        self._now = FolderNow(self._folder, max_files=MAX_READ_FILES, max_bytes=MAX_READ_BYTES)
        super().__init__(self._now.look(), workdir=str(self._folder), searcher=searcher_of(self._folder))
        self._permissions = permissions
        self._place: HostPlace | None = None
        self._scratch = HostScratch(host_exec)
        self._begun: Mapping[str, bytes] = {}
        """The files when the last command began."""
        self._agreed: dict[str, bytes | None] = {}
        self.left: dict[str, bytes | None] = {}
        """Files that the agent or its commands changed, with the contents they were left with."""

    async def files(self) -> list[str]:
        await self._look()
        return await super().files()

    async def read(self, path: str) -> bytes:
        self._look_at(clean_path(path, self.workdir))
        return await super().read(path)

    async def find(self, query: Query, most: int) -> list[Line] | None:
        if self.searcher is None:
            return None
        return await self.searcher.search(query, {}, lambda path: _is_shown(self._folder, path), most)

    async def write(self, path: str, data: bytes) -> None:
        path = clean_path(path, self.workdir)
        await self._change(path, data)

    async def delete(self, path: str) -> None:
        path = clean_path(path, self.workdir)
        await self.read(path)  # raises if the file cannot be deleted
        await self._change(path, None)

    async def agree(self, changes: Mapping[str, bytes | None]) -> None:
        """Ask once for changes that belong together. Each of them can then be made without another question, if it is
        made exactly as given here. Raises Denied if the user does not want them."""
        await self._ask({path: data for path, data in changes.items() if self._files.get(path) != data})
        self._agreed = dict(changes)

    async def exec(self, command: str, *, timeout: float) -> ExecResult:
        wish = await self._permissions.agree(Wish("execute", command))
        await self._look()
        before = self._files
        try:
            return await host_exec(wish.what, self._folder, timeout)
        finally:
            await self._look()
            self._has_left(before)

    async def in_terminal(self, use: Callable[[Terminals], Awaitable[T]]) -> T:
        if self._place is None:
            self._place = HostPlace(self._folder)
            self._terminals = _Asking(self._place, self._permissions, self._about_to_run)
        assert self._terminals is not None
        await self._about_to_run()
        try:
            return await use(self._terminals)
        finally:
            await self._look()
            self._has_left(self._begun)

    async def snapshot(self) -> Mapping[str, bytes]:
        await self._look()
        return await super().snapshot()

    async def aside(self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float) -> list[ExecResult]:
        wish = await self._permissions.agree(Wish("execute", command))
        return await self._scratch.run(states, wish.what, timeout=timeout)

    def changed(self) -> dict[str, bytes | None]:
        return {path: data for path, data in super().changed().items() if path in self.left}

    async def put_back(self, changes: Mapping[str, bytes | None]) -> None:
        """Set files that the agent changed to these contents, on behalf of the user, so without asking. Raises
        ApplyConflict where a file is neither what the agent left nor already what it is to become."""
        left = {path: data for path, data in self.left.items() if data is not None}
        await self._write(changes, left)

    async def _write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes]) -> None:
        await asyncio.to_thread(write_changes, self._folder, expected, changes)
        self._files = _with(self._files, changes)
        self.left.update(changes)

    async def _about_to_run(self) -> None:
        """Note the current files, so that later differences count as the command's doing. What a running job changes
        between two looks cannot be told from the user's changes: it counts as the agent's."""
        if self._terminals is None or all(code is not None for _, _, code in self._terminals.jobs()):
            await self._look()
        self._begun = self._files

    def _has_left(self, before: Mapping[str, bytes]) -> None:
        now = self._files
        changed = {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
        self.left.update({path: now.get(path) for path in changed})

    def count_from(self, changed: Mapping[str, tuple[bytes | None, bytes | None]]) -> None:
        """Take over the changes of an earlier session; `changed` maps each path to its contents before and after. A
        file that is still as that session left it counts as changed by the agent; all others are ignored."""
        still = {path: before for path, (before, now) in changed.items() if self._files.get(path) == now}
        self.start = _with(self.start, still)
        self.left.update({path: self._files.get(path) for path in still})

    async def close(self) -> None:
        await self._scratch.close()
        if self._place is not None:
            await self._place.close()
            self._place = None
        await super().close()

    async def _change(self, path: str, data: bytes | None) -> None:
        if not is_source(path):
            raise RequestRefused(f"{path} belongs to version control or to a cache, which are left alone")
        if data is not None:
            self._check_place(path)
        if path not in self._agreed or self._agreed.pop(path) != data:
            await self._ask({path: data})
        try:
            # Expect the contents that the question showed: the user may have edited the file while being asked.
            await self._write({path: data}, self._files)
        except ApplyConflict:
            self._look_at(path)
            raise RequestRefused(f"{path} was changed by somebody else just now: read it again") from None
        except OSError as error:
            raise RequestRefused(f"{path} cannot be written: {error.strerror}") from None

    async def _ask(self, changes: Mapping[str, bytes | None]) -> None:
        """Ask for all changes with one question that shows them all. The rules are applied to each path: if one is
        denied all are, and there is no question only if every path is allowed."""
        for path in changes:
            if leads_out(self._folder, path) or (self._folder / path).is_symlink():
                raise RequestRefused(f"{path} lies behind a link, which is not followed")
        before = {path: self._files[path] for path in changes if path in self._files}
        after = {path: data for path, data in changes.items() if data is not None}
        shown = unified_diff(before, after) + binary_changes(before, after)
        wishes = {verdict: wish for wish, verdict in self._judged(sorted(changes, reverse=True), shown)}
        for verdict in ("deny", "ask"):
            if wish := wishes.get(verdict):
                await self._permissions.agree(wish)
                return

    def _judged(self, paths: list[str], shown: str) -> list[tuple[Wish, str]]:
        wishes = [Wish("write", path, shown) for path in paths]
        return [(wish, self._permissions.verdict(wish)) for wish in wishes]

    def _check_place(self, path: str) -> None:
        if path == "." or any(name.startswith(f"{path}/") for name in self._files):
            raise IsADirectoryError(path)
        parts = path.split("/")
        if any("/".join(parts[:count]) in self._files for count in range(1, len(parts))):
            raise NotADirectoryError(path)

    def _look_at(self, path: str) -> None:
        """Refresh one file from disk."""
        found = _content(self._folder, path)
        if found != self._files.get(path):
            self._files = _with(self._files, {path: found})

    async def _look(self) -> None:
        try:
            self._files = await asyncio.to_thread(self._now.look)
        except FolderTooLarge:
            # A command left more files than fit in memory: refresh only the known ones.
            for path in list(self._files):
                self._look_at(path)


class _Asking(Terminals):
    """Terminals that ask the user before each command and before each input to a running one."""

    def __init__(self, place: HostPlace, permissions: Permissions, about_to_run: Callable[[], Awaitable[None]]) -> None:
        super().__init__(place, {}, str(place.scratch))
        self._scratch, self._permissions, self._about_to_run = place.scratch, permissions, about_to_run

    async def run(self, command: str, *, seconds: float) -> Heard:
        wish = await self._permissions.agree(Wish("execute", command))
        await self._about_to_run()
        return _told(await super().run(wish.what, seconds=seconds), command, wish)

    async def start(self, command: str, *, seconds: float) -> Heard:
        wish = await self._permissions.agree(Wish("execute", command))
        await self._about_to_run()
        return _told(await super().start(wish.what, seconds=seconds), command, wish)

    async def write(self, job: int, data: bytes) -> bool:
        command = self._jobs[job].command
        typed = data.decode("utf-8", "replace").removesuffix("\n")
        wish = await self._permissions.agree(Wish("execute", typed, f"typed into: {command}", plain=False))
        return await super().write(job, data if wish.what == typed else f"{wish.what}\n".encode())

    async def keep(self, folder: str, text: str) -> str:
        return await super().keep(str(self._scratch), text)


def _told(heard: Heard, command: str, wish: Wish) -> Heard:
    if wish.what == command:
        return heard
    return replace(heard, text=f"(the user made it: {wish.what})\n{heard.text}")


def _with(files: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    after = {path: data for path, data in files.items() if path not in changes}
    return after | {path: data for path, data in changes.items() if data is not None}


def _content(folder: Path, path: str) -> bytes | None:
    """Contents of a file; None if a view of the folder would not show it or we may not read it."""
    try:
        return (folder / path).read_bytes() if _is_shown(folder, path) else None
    except OSError:
        return None


def _is_shown(folder: Path, path: str) -> bool:
    """Whether a view of the folder shows this file: a regular file, not too large, not in version control or a cache,
    not behind a symlink, and with a name that is valid text."""
    if not is_source(path) or not is_text_name(path):
        return False
    try:
        found = (folder / path).lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= MAX_FILE_BYTES and not leads_out(folder, path)
