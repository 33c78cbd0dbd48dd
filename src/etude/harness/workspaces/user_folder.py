"""The user's own folder as a workspace: the agent works in the folder itself, protected only by the user's permissions.

Invariants: every file change and every command must be allowed by `Permissions.agree` first. This is checked here,
below all tools, so that no tool can forget it. Exactly the action that was allowed is taken. A file that changed since
it was last read is not overwritten, and nothing is written through symlinks or into version control.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from etude.harness.editing.apply import ApplyConflict, has_symlink_parent, write_changes
from etude.harness.editing.diff import binary_changes, is_source, unified_diff
from etude.harness.permissions import Permissions, RequestedAction
from etude.harness.search.grep_query import Line, Query
from etude.harness.workspaces.box_runner import MAX_READ_BYTES, MAX_READ_FILES
from etude.harness.workspaces.folder_files import MAX_FILE_BYTES, CurrentFiles, FolderTooLarge, is_text_name
from etude.harness.workspaces.folder_grep import searcher_of
from etude.harness.workspaces.scratch_tree import HostScratch
from etude.harness.workspaces.terminal import TerminalOutput, Terminals
from etude.harness.workspaces.unboxed_commands import HostTerminals, host_exec
from etude.harness.workspaces.workspace import OverlayWorkspace, clean_path
from etude.sandbox.contract import ExecResult, RequestRefused

T = TypeVar("T")


class FolderWorkspace(OverlayWorkspace):
    """A workspace that is the user's folder itself. The agent also reads the user's changes, but `changed` and `diff`
    report only those by the agent and its commands."""

    def __init__(self, folder: Path, permissions: Permissions) -> None:
        self._folder = folder.resolve()
        self._now = CurrentFiles(self._folder, max_files=MAX_READ_FILES, max_bytes=MAX_READ_BYTES)
        super().__init__(self._now.read(), workdir=str(self._folder), searcher=searcher_of(self._folder))
        self._permissions = permissions
        self._place: HostTerminals | None = None
        self._scratch = HostScratch(host_exec)
        self._begun: Mapping[str, bytes] = {}
        """The files when the last command began. Differences from them count as changes by the command."""
        self._agreed: dict[str, bytes | None] = {}
        """Changes, by path, that the user has allowed but that are not made yet."""
        self.left: dict[str, bytes | None] = {}
        """Files that the agent or its commands changed, with the contents after the change (None: deleted)."""

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
        await self.read(path)  # raises if there is no such file
        await self._change(path, None)

    async def agree(self, changes: Mapping[str, bytes | None]) -> None:
        """Ask the user one question about several changes. Raises Denied. Afterwards each of these changes can be made
        without another question, but no others."""
        await self._ask({path: data for path, data in changes.items() if self._files.get(path) != data})
        self._agreed = dict(changes)

    async def exec(self, command: str, *, timeout: float) -> ExecResult:
        action = await self._permissions.agree(RequestedAction("execute", command))
        await self._look()
        before = self._files
        try:
            return await host_exec(action.what, self._folder, timeout)
        finally:
            await self._look()
            self._has_left(before)

    async def in_terminal(self, use: Callable[[Terminals], Awaitable[T]]) -> T:
        if self._place is None:
            self._place = HostTerminals(self._folder)
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

    async def run_in_scratch(
        self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float
    ) -> list[ExecResult]:
        action = await self._permissions.agree(RequestedAction("execute", command))
        return await self._scratch.run(states, action.what, timeout=timeout)

    def changed(self) -> dict[str, bytes | None]:
        return {path: data for path, data in super().changed().items() if path in self.left}

    async def put_back(self, changes: Mapping[str, bytes | None]) -> None:
        """Write contents to files that the agent changed, on behalf of the user, so without a question. Raises
        ApplyConflict if a file has neither the contents that the agent left nor the new ones."""
        left = {path: data for path, data in self.left.items() if data is not None}
        await self._write(changes, left)

    async def _write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes]) -> None:
        await asyncio.to_thread(write_changes, self._folder, expected, changes)
        self._files = _with(self._files, changes)
        self.left.update(changes)

    async def _about_to_run(self) -> None:
        """Record the files before a command, so that later differences count as the agent's. The folder is read again
        first, so that the user's own changes do not count, unless a background command is running: its changes cannot
        be told from the user's, so all count as the agent's."""
        if self._terminals is None or all(code is not None for _, _, code in self._terminals.jobs()):
            await self._look()
        self._begun = self._files

    def _has_left(self, before: Mapping[str, bytes]) -> None:
        """Record all differences from `before` as changes by the agent."""
        now = self._files
        changed = {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
        self.left.update({path: now.get(path) for path in changed})

    def adopt_changes(self, changed: Mapping[str, tuple[bytes | None, bytes | None]]) -> None:
        """Record changes of an earlier session, given as contents before and after, as changes by the agent, unless the
        file was changed again since then."""
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
        """Write a file, or delete it if `data` is None. The user is asked, unless this change was already allowed."""
        if not is_source(path):
            raise RequestRefused(f"{path} belongs to version control or a cache, which cannot be changed")
        if data is not None:
            self._check_place(path)
        if path not in self._agreed or self._agreed.pop(path) != data:
            await self._ask({path: data})
        try:
            # The file must still have the contents that the question showed, since the user may have edited it.
            await self._write({path: data}, self._files)
        except ApplyConflict:
            self._look_at(path)
            raise RequestRefused(f"{path} was changed by somebody else just now: read it again") from None
        except OSError as error:
            raise RequestRefused(f"{path} cannot be written: {error.strerror}") from None

    async def _ask(self, changes: Mapping[str, bytes | None]) -> None:
        """Ask one question that shows all changes, if the rules require it for any path. If they deny one path, all
        changes are denied."""
        for path in changes:
            if has_symlink_parent(self._folder, path) or (self._folder / path).is_symlink():
                raise RequestRefused(f"{path} is or is below a symlink, which is not followed")
        before = {path: self._files[path] for path in changes if path in self._files}
        after = {path: data for path, data in changes.items() if data is not None}
        shown = unified_diff(before, after) + binary_changes(before, after)
        actions = {verdict: action for action, verdict in self._judged(sorted(changes, reverse=True), shown)}
        for verdict in ("deny", "ask"):
            if action := actions.get(verdict):
                await self._permissions.agree(action)
                return

    def _judged(self, paths: list[str], shown: str) -> list[tuple[RequestedAction, str]]:
        actions = [RequestedAction("write", path, shown) for path in paths]
        return [(action, self._permissions.verdict(action)) for action in actions]

    def _check_place(self, path: str) -> None:
        """Raise IsADirectoryError if the path is a folder, and NotADirectoryError if one of its parents is a file."""
        if path == "." or any(name.startswith(f"{path}/") for name in self._files):
            raise IsADirectoryError(path)
        parts = path.split("/")
        if any("/".join(parts[:count]) in self._files for count in range(1, len(parts))):
            raise NotADirectoryError(path)

    def _look_at(self, path: str) -> None:
        found = _content(self._folder, path)
        if found != self._files.get(path):
            self._files = _with(self._files, {path: found})

    async def _look(self) -> None:
        try:
            self._files = await asyncio.to_thread(self._now.read)
        except FolderTooLarge:
            # A command has created more files than fit in memory, so only the known files are read again.
            for path in list(self._files):
                self._look_at(path)


class _Asking(Terminals):
    """Terminals that ask the user before each command and before each input to a running command."""

    def __init__(
        self, place: HostTerminals, permissions: Permissions, about_to_run: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(place, {}, str(place.scratch))
        self._scratch, self._permissions, self._about_to_run = place.scratch, permissions, about_to_run

    async def run(self, command: str, *, seconds: float) -> TerminalOutput:
        action = await self._permissions.agree(RequestedAction("execute", command))
        await self._about_to_run()
        return _told(await super().run(action.what, seconds=seconds), command, action)

    async def start(self, command: str, *, seconds: float) -> TerminalOutput:
        action = await self._permissions.agree(RequestedAction("execute", command))
        await self._about_to_run()
        return _told(await super().start(action.what, seconds=seconds), command, action)

    async def write(self, job: int, data: bytes) -> bool:
        command = self._jobs[job].command
        typed = data.decode("utf-8", "replace").removesuffix("\n")
        action = await self._permissions.agree(RequestedAction("execute", typed, f"typed into: {command}", plain=False))
        return await super().write(job, data if action.what == typed else f"{action.what}\n".encode())

    async def keep(self, folder: str, text: str) -> str:
        return await super().keep(str(self._scratch), text)


def _told(output: TerminalOutput, command: str, action: RequestedAction) -> TerminalOutput:
    """Return the output, preceded by a note to the agent if the user rewrote the command."""
    if action.what == command:
        return output
    return replace(output, text=f"(the user changed the command to: {action.what})\n{output.text}")


def _with(files: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    after = {path: data for path, data in files.items() if path not in changes}
    return after | {path: data for path, data in changes.items() if data is not None}


def _content(folder: Path, path: str) -> bytes | None:
    try:
        return (folder / path).read_bytes() if _is_shown(folder, path) else None
    except OSError:
        return None


def _is_shown(folder: Path, path: str) -> bool:
    """Return whether the workspace shows this file: regular, not large, not in version control or a cache, not below a
    symlink, and with a name that is valid text."""
    if not is_source(path) or not is_text_name(path):
        return False
    try:
        found = (folder / path).lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= MAX_FILE_BYTES and not has_symlink_parent(folder, path)
