"""A scratch tree: a copy of a workspace's files, in which a command runs on several states of the files in turn.

Files that commands write there never reach the workspace. Invariant: when a command runs, the tree contains exactly the
files of the requested state. There is one exception: in a box, folders of installed packages and large files appear as
symlinks into the workspace, and symlinks are copied as symlinks. Programs with a cache recognise changed files by their
timestamps. So the files written for a state get a timestamp in whole seconds that is later than those of all files
written before.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from os import utime
from pathlib import Path, PurePosixPath

from etude.harness.workspaces.workspace import AGENT_ENV, TOO_LARGE
from etude.sandbox.contract import Box, DiskFull, ExecResult, RequestRefused

SCRATCH = "/tmp/etude-scratch"
"""Path of the scratch tree in a box. If commands run on the host, the tree is a temporary folder. Their output then
shows this path in place of that folder's."""
PREPARE_SECONDS = 60.0
LINKED = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox"})
"""Names of folders with installed packages, which are not copied into the scratch tree but linked."""
_CARGO_BUILDS = "target"
_AT_ONCE = 200
_MAX_TREE_FILES, _MAX_TREE_BYTES = 100_000, 1 << 30

# Installed packages and large files, which a state of the files does not contain, are linked into the tree. The empty
# .git folder makes programs respect .gitignore.
_PREPARE = r"""
tree=$1
[ -z "$2" ] || rm -rf "$tree"
if [ ! -d "$tree" ]; then mkdir -p "$tree/.git" || exit 1; echo fresh; fi
find . -type d \( -name .git -prune -o \
    \( -name node_modules -o -name .venv -o -name venv -o -name .tox -o -name .nox \) -prune -print \) \
  -o -type l -print -o -type f -size +1000000c -print | while IFS= read -r path; do
  [ -e "$tree/$path" ] || [ -L "$tree/$path" ] || {
    mkdir -p "$tree/${path%/*}"
    if [ -L "$path" ]; then cp -P -- "$path" "$tree/$path"; else ln -s "$PWD/${path#./}" "$tree/$path"; fi
  }
done
"""
_DELETE = """
for path; do
  rm -f -- "$path"
  case "$path" in */*) rmdir -p -- "${path%/*}" 2>/dev/null;; esac
done
true
"""


def is_own(path: str, files: Mapping[str, bytes]) -> bool:
    """Return whether a file is neither in a folder of installed packages nor in cargo's build folder."""
    parts = path.split("/")[:-1]
    if LINKED.intersection(parts):
        return False
    if _CARGO_BUILDS in parts:
        above = parts[: parts.index(_CARGO_BUILDS)]
        return "/".join([*above, "Cargo.toml"]) not in files
    return True


class BoxScratch:
    def __init__(self, box: Box) -> None:
        self._box = box
        self._held: Mapping[str, bytes] | None = None
        """The files in the scratch tree; None if they are unknown."""
        self._clock = _Clock()

    async def run(self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float) -> list[ExecResult]:
        prepare = ["sh", "-c", _PREPARE, "prepare", SCRATCH, "" if self._held is not None else "anew"]
        made = await self._box.exec(prepare, timeout=PREPARE_SECONDS)
        if made.code:  # a timeout also gives a code
            words = " ".join(made.stderr.decode("utf-8", "replace").split())
            raise RequestRefused(f"cannot copy the workspace's files to {SCRATCH}: {words}")
        if b"fresh" in made.stdout:
            self._held = {}
        results = []
        for state in states:
            await self._hold(_own(state))
            results.append(await self._box.exec(command, timeout=timeout, cwd=SCRATCH, env=AGENT_ENV))
        return results

    async def _hold(self, files: Mapping[str, bytes]) -> None:
        """Make the scratch tree contain exactly these files, except those that are too large to read."""
        held, self._held = self._held or {}, None
        changed = {path: data for path, data in files.items() if held.get(path) != data and data != TOO_LARGE}
        gone = sorted(held.keys() - files.keys())
        try:
            for at in range(0, len(gone), _AT_ONCE):
                delete = ["sh", "-c", _DELETE, "delete", *gone[at : at + _AT_ONCE]]
                await self._box.exec(delete, timeout=PREPARE_SECONDS, cwd=SCRATCH)
            if changed:
                tar = await asyncio.to_thread(_tar, changed, self._clock.tick())
                await self._box.write_tree(SCRATCH, tar, max_bytes=_MAX_TREE_BYTES, max_files=_MAX_TREE_FILES)
        except (OSError, DiskFull) as error:
            raise RequestRefused(f"cannot copy the workspace's files to {SCRATCH}: {error}") from error
        self._held = files


HostExec = Callable[[str, Path, float, bytes], Awaitable[ExecResult]]
"""Function that runs a command on the host. Its arguments: the command, its folder, its time limit in seconds, and the
text that replaces the folder's path in the output."""


class HostScratch:
    def __init__(self, execute: HostExec) -> None:
        self._execute = execute
        self._folder: Path | None = None
        self._held: Mapping[str, bytes] | None = None
        self._clock = _Clock()

    async def run(self, states: Sequence[Mapping[str, bytes]], command: str, *, timeout: float) -> list[ExecResult]:
        results = []
        for state in states:
            try:
                folder = await asyncio.to_thread(self._hold, state)
            except OSError as error:
                raise RequestRefused(f"cannot copy the files to a temporary folder: {error.strerror}") from error
            results.append(await self._execute(command, folder, timeout, SCRATCH.encode()))
        return results

    def _hold(self, files: Mapping[str, bytes]) -> Path:
        if self._folder is None or self._held is None:
            self._remove()
            self._folder = Path(tempfile.mkdtemp(prefix="etude-scratch-"))
            (self._folder / ".git").mkdir()
        folder, held, self._held = self._folder, self._held or {}, None
        for path in held.keys() - files.keys():
            (folder / path).unlink(missing_ok=True)
            for above in PurePosixPath(path).parents[:-1]:
                if any((folder / above).iterdir()):
                    break
                (folder / above).rmdir()
        now = self._clock.tick()
        for path, data in files.items():
            if held.get(path) != data:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                utime(target, (now, now))
        self._held = files
        return folder

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def close(self) -> None:
        await asyncio.to_thread(self._remove)


class _Clock:
    """Returns timestamps in whole seconds, each later than the previous one and than the current time."""

    def __init__(self) -> None:
        self._last = 0

    def tick(self) -> int:
        self._last = max(self._last + 1, int(time.time()) + 2)
        return self._last


def _own(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if is_own(path, files)}


def _tar(files: Mapping[str, bytes], modified: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(files[path]), modified, 0o644
            tar.addfile(member, io.BytesIO(files[path]))
    return packed.getvalue()
