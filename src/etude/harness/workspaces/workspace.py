"""The Workspace interface: the files that the agent works on, and the commands that run on them.

There are two implementations. `OverlayWorkspace` has the files in memory and needs a runner (a box) only for commands.
`FolderWorkspace` is the user's own folder, and asks the user before each change. All paths are relative to the
workspace; paths outside it raise OutsideWorkspace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Protocol, TypeVar, runtime_checkable

from etude.harness.editing.diff import is_source, unified_diff
from etude.harness.search.grep_query import Line, Query, Searcher
from etude.harness.workspaces.folder_files import MAX_FILE_BYTES, FolderFiles, Layered, is_text_name, put
from etude.harness.workspaces.terminal import TerminalHost, Terminals
from etude.sandbox.contract import Box, ExecResult, RequestRefused

T = TypeVar("T")
WORKDIR = "/work"
DELETE_SECONDS = 10.0
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 3072
"""Maximum length of a file's name and of its path in the workspace. For names this is the kernel's limit. For paths the
kernel allows 4096 bytes; the rest is left for the path of the workspace's folder."""

AGENT_ENV = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}
"""Environment of every command of the agent. It makes commands repeatable and keeps caches out of the workspace."""


class OutsideWorkspace(Exception):
    """The path is outside the workspace, or longer than a file system allows."""


class NoShell(Exception):
    """This workspace cannot run commands."""


@runtime_checkable
class Workspace(Protocol):
    """The interface of a workspace, as tools use it.

    `read` raises FileNotFoundError, IsADirectoryError, RequestRefused (file too large) and OutsideWorkspace. Every
    method raises SandboxError for infrastructure failures.
    """

    @property
    def workdir(self) -> str:
        """Absolute path of the workspace, as commands see it. Methods also accept absolute paths below it."""
        ...

    async def files(self) -> list[str]: ...

    async def read(self, path: str) -> bytes: ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file. Raises IsADirectoryError if the path is a folder, NotADirectoryError if a parent is a file."""
        ...

    async def delete(self, path: str) -> None:
        """Delete a file and its parent folders that become empty. Raises FileNotFoundError and IsADirectoryError."""
        ...

    async def exec(self, command: str, *, timeout: float) -> ExecResult: ...

    async def in_terminal(self, use: Callable[[Terminals], Awaitable[T]]) -> T:
        """Call `use` with the workspace's terminals and return its result.

        Before the call, commands get the current files; after it, the workspace has the changes that commands made.
        """
        ...

    @property
    def start(self) -> Mapping[str, bytes]:
        """The original files, with which `diff` compares the current files."""
        ...

    async def snapshot(self) -> Mapping[str, bytes]: ...

    async def run_in_scratch(
        self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float
    ) -> list[ExecResult]:
        """Run a command in a scratch tree (scratch_tree.py), once on each of the given states of the files.

        The command may change the scratch tree, but cannot change the workspace. The last state must be the current
        files, as `snapshot` returns them. Only one call may run at a time.
        """
        ...

    async def diff(self) -> str:
        """Return the unified diff of all text files from the original to the current files."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class AsksFirst(Protocol):
    """Interface of a workspace that asks the user before a file changes."""

    async def agree(self, changes: Mapping[str, bytes | None]) -> None:
        """Ask the user one question about several changes. Raises RequestRefused if the answer is no."""
        ...


class Runner(Protocol):
    """Interface for running commands, usually in a box, on files that the caller holds."""

    async def run(
        self, files: Mapping[str, bytes], command: str, *, timeout: float
    ) -> tuple[ExecResult, Mapping[str, bytes]]: ...

    async def enter(self, files: Mapping[str, bytes]) -> TerminalHost:
        """Write `files` to the box and return the box for opening terminals. Raises NoShell if the runner cannot open
        terminals."""
        ...

    async def read_back(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the files after commands ran in terminals.

        `files` are those that were passed to `enter`. They are returned if the box was lost or its files cannot be
        read.
        """
        ...

    async def run_in_scratch(
        self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float
    ) -> list[ExecResult]:
        """Run a command as described in `Workspace.run_in_scratch`. Before that, the last state is written to the
        workspace in the box."""
        ...

    async def close(self) -> None: ...


def clean_path(path: str, workdir: str = WORKDIR) -> str:
    """Return the normalised path relative to the workspace; "." is the workspace itself. Raises OutsideWorkspace."""
    pure = PurePosixPath(path)
    if not path or "\0" in path:
        raise OutsideWorkspace(path)
    if pure.is_absolute():
        if not pure.is_relative_to(workdir):
            raise OutsideWorkspace(path)
        pure = pure.relative_to(workdir)
    parts: list[str] = []
    for part in pure.parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise OutsideWorkspace(path)
    named = "/".join(parts)
    if len(_bytes(named)) > MAX_PATH_BYTES or any(len(_bytes(part)) > MAX_NAME_BYTES for part in parts):
        raise OutsideWorkspace(path)
    return named or "."


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


class OverlayWorkspace:
    """A workspace with changed files in memory, on top of original files that may be shared. `runner` runs commands."""

    def __init__(
        self,
        start: Mapping[str, bytes],
        runner: Runner | None = None,
        workdir: str = WORKDIR,
        searcher: Searcher | None = None,
    ) -> None:
        """`start` are the original files. If they are a folder's files, pass a `searcher`, which greps them on disk."""
        self.workdir = workdir
        self.start: Mapping[str, bytes] = start
        if not isinstance(start, FolderFiles):
            self.start = {path: data for path, data in start.items() if is_source(path)}
        self.searcher = searcher
        self._files = self.start
        self._runner = runner
        self._terminals: Terminals | None = None

    async def files(self) -> list[str]:
        return sorted(path for path in self._files if is_source(path))

    async def read(self, path: str) -> bytes:
        path = clean_path(path, self.workdir)
        data = self._files.get(path)
        if data is None:
            if path == "." or any(name.startswith(f"{path}/") for name in self._files):
                raise IsADirectoryError(path)
            raise FileNotFoundError(path)
        if len(data) > MAX_FILE_BYTES:
            raise RequestRefused(f"{path} has {len(data)} bytes, at most {MAX_FILE_BYTES} can be read")
        return data

    async def write(self, path: str, data: bytes) -> None:
        path = clean_path(path, self.workdir)
        if path == "." or any(name.startswith(f"{path}/") for name in self._files):
            raise IsADirectoryError(path)
        if any(str(parent) in self._files for parent in PurePosixPath(path).parents):
            raise NotADirectoryError(path)
        self._files = put(self._files, path, data)

    async def delete(self, path: str) -> None:
        path = clean_path(path, self.workdir)
        if path not in self._files:
            if path == "." or any(name.startswith(f"{path}/") for name in self._files):
                raise IsADirectoryError(path)
            raise FileNotFoundError(path)
        self._files = put(self._files, path, None)

    async def exec(self, command: str, *, timeout: float) -> ExecResult:
        if self._runner is None:
            raise NoShell
        result, self._files = await self._runner.run(self._files, command, timeout=timeout)
        return result

    async def in_terminal(self, use: Callable[[Terminals], Awaitable[T]]) -> T:
        if self._runner is None:
            raise NoShell
        place = await self._runner.enter(self._files)
        if self._terminals is None or self._terminals.place is not place:
            self._terminals = Terminals(place, AGENT_ENV)
        try:
            return await use(self._terminals)
        finally:
            self._files = await self._runner.read_back(self._files)

    async def find(self, query: Query, most: int) -> list[Line] | None:
        """Return the first `most` matching lines; None if the files are not in a folder on disk, or ripgrep is not
        installed."""
        if self.searcher is None:
            return None
        return await self.searcher.search(query, self.changed(), self._files.__contains__, most)

    async def snapshot(self) -> Mapping[str, bytes]:
        if isinstance(self.start, FolderFiles) and not self.start.whole:
            if self._runner is None:
                raise NoShell
            raise RequestRefused("the folder is too large for a copy of all its files")
        return {path: data for path, data in self._files.items() if is_source(path)}

    async def run_in_scratch(
        self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float
    ) -> list[ExecResult]:
        if self._runner is None:
            raise NoShell
        return await self._runner.run_in_scratch(states, command, timeout=timeout)

    def changed(self) -> dict[str, bytes | None]:
        """Return the current contents of the files that differ from the original ones; None for a deleted file."""
        if self._files is self.start:
            return {}
        if isinstance(self._files, Layered):
            either = [path for path in self._files.changes if self.start.get(path) != self._files.get(path)]
        else:
            either = [path for path, data in self._files.items() if self.start.get(path) != data]
            either += [path for path in self.start if path not in self._files]
        return {path: self._files.get(path) for path in sorted(either) if is_source(path)}

    def sides(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        return {path: (self.start.get(path), data) for path, data in self.changed().items()}

    def contents(self) -> Mapping[str, bytes]:
        return self._files

    def rebase(self, paths: Collection[str]) -> None:
        """Make the current contents of these files their original contents."""
        if isinstance(self.start, FolderFiles):
            for path in paths:
                self.start.rebase(path, self._files.get(path))
            return
        kept = {path: data for path, data in self.start.items() if path not in paths}
        self.start = kept | {path: self._files[path] for path in paths if path in self._files}

    async def diff(self) -> str:
        changed = self.changed()
        before = {path: self.start[path] for path in changed if path in self.start}
        return unified_diff(before, {path: data for path, data in changed.items() if data is not None})

    async def close(self) -> None:
        if self.searcher is not None:
            await self.searcher.close()
        if self._runner is not None:
            await self._runner.close()


_DELETE = """
if [ -d "$1" ] && ! [ -L "$1" ]; then exit 21; fi
if ! [ -e "$1" ] && ! [ -L "$1" ]; then exit 20; fi
rm -- "$1" || exit 22
case "$1" in */*) rmdir -p --ignore-fail-on-non-empty -- "${1%/*}" 2>/dev/null;; esac
exit 0
"""


async def delete_file(box: Box, path: str) -> None:
    """Delete a file and its parent folders that become empty, since a workspace has no empty folders."""
    result = await box.exec(["sh", "-c", _DELETE, "delete", path], timeout=DELETE_SECONDS)
    match result.code:
        case 0:
            return
        case 20:
            raise FileNotFoundError(path)
        case 21:
            raise IsADirectoryError(path)
    raise RequestRefused(f"{path} cannot be deleted: {' '.join(result.stderr.decode('utf-8', 'replace').split())}")


async def read_tree(box: Box, last: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return all files of the workspace in a box, except those whose names are not valid text.

    A file that is too large to read has the contents TOO_LARGE, which never appear in a diff. A file that the agent
    made unreadable keeps its contents from `last`.
    """
    tree: dict[str, bytes] = {}
    for path in await box.list_files("."):
        if not is_source(path) or not is_text_name(path):
            continue
        try:
            tree[path] = await box.read_file(path, max_bytes=MAX_FILE_BYTES)
        except RequestRefused:
            tree[path] = TOO_LARGE
        except PermissionError:
            if path in last:
                tree[path] = last[path]
        except OSError:
            continue  # a background command of the agent has just deleted the file
    return tree


TOO_LARGE = b"\0 too large to be read"
"""Placeholder for the contents of a file that is too large to read. It is not text, so diffs leave it out."""
