"""A box that is a folder of the host. Its files are read and written directly; its commands run confined (see
confinement.py)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, Unpack

from etude.sandbox.commands import ENVIRONMENT, shell_line
from etude.sandbox.contract import (
    Box,
    BoxBusy,
    BoxSpec,
    BoxStats,
    DiskFull,
    ExecResult,
    Process,
    RequestRefused,
    SandboxError,
    SandboxLost,
)
from etude.sandbox.cpu_share import ShareMeter
from etude.sandbox.images.full_disk import FULL_DISK
from etude.sandbox.images.host_base import SYSTEM
from etude.sandbox.images.image import Image
from etude.sandbox.inside import files, trees
from etude.sandbox.inside.wire import printable
from etude.sandbox.modes.confinement import BoxFolder, Confinement
from etude.sandbox.modes.folder_process import FolderProcess
from etude.sandbox.modes.runner_client import CommandRun
from etude.sandbox.options import Command, ExecOptions, StartOptions
from etude.sandbox.tars import Member, Tar, pack

T = TypeVar("T")
_CHUNK = 1 << 16
_NOT_FILES = ("/proc", "/dev", "/sys", *SYSTEM)
"""Folders that exist in the box but not in its folder on the host."""
_NO_PROC = -1
"""Passed to inside/files.py as the device number of /proc, whose files it refuses. No device has this number, so
nothing is refused: a box's folder on the host contains no /proc."""


class FolderBackend(Protocol):
    """The part of the backend (`FolderSandboxes`) that its boxes call."""

    confinement: Confinement

    def size(self, tree: Path) -> int: ...

    def size_of(self, image: Image) -> int: ...

    async def keep(self, box: FolderBox) -> str: ...

    async def copy_of(self, box: FolderBox) -> FolderBox: ...

    async def forget(self, box: FolderBox) -> None: ...


class FolderBox:
    def __init__(
        self, backend: FolderBackend, name: str, spec: BoxSpec, image: Image, folder: BoxFolder, commands: list[str]
    ) -> None:
        self.id, self.spec, self.image, self.folder = name, spec, image, folder
        self._backend, self._commands = backend, list(commands)
        self._runs: dict[CommandRun, str] = {}
        self._made, self._spent, self._ended = time.monotonic(), 0.0, False

    @property
    def commands(self) -> list[str]:
        return list(self._commands)

    # -- commands

    async def exec(self, command: list[str] | str, **options: Unpack[ExecOptions]) -> ExecResult:
        asked = Command(command, **options)
        watch, run = ShareMeter(), await self._start(asked)
        room = self.spec.limits.output_bytes
        kept = {1: bytearray(), 2: bytearray()}
        truncated = False

        async def drain(number: int, stream: asyncio.StreamReader) -> None:
            nonlocal truncated
            while data := await stream.read(_CHUNK):
                fits = data[: room - len(kept[number])]
                truncated |= len(fits) < len(data)
                kept[number] += fits
                if fits and asked.on_output is not None:
                    asked.on_output(number, fits)

        assert run.process.stdout is not None
        assert run.process.stderr is not None
        clock = asyncio.get_running_loop().call_later(asked.timeout, run.end, "time")
        streams = asyncio.gather(
            self._feed(run, asked.stdin), drain(1, run.process.stdout), drain(2, run.process.stderr), run.result()
        )
        try:
            code, limit = (await asyncio.shield(streams))[-1]
        except BaseException:
            run.end("cancelled")
            with contextlib.suppress(SandboxLost):
                await streams
            raise
        finally:
            clock.cancel()
            self._count_run(run)
        if self._ended:
            raise self._lost()
        seconds = time.monotonic() - run.began
        share = watch.share(run.cpu_seconds)
        return ExecResult(code, bytes(kept[1]), bytes(kept[2]), seconds, limit == "time", truncated, limit, share)

    async def start(self, command: list[str] | str, **options: Unpack[StartOptions]) -> Process:
        asked = Command(command, **options)
        if asked.terminal is not None:
            raise RequestRefused(f"mode {self._backend.confinement.name} has no terminals; see `etude sandbox doctor`")
        run = await self._start(asked, merged=True)

        return FolderProcess(
            run, asked.timeout, self.spec.limits.output_bytes, lambda: self._count_run(run), self._require_alive
        )

    def _count_run(self, run: CommandRun) -> None:
        """Drop a command that has ended from the running ones, and add its CPU time to the box's total."""
        if self._runs.pop(run, None) is not None:
            self._spent += run.cpu_seconds

    async def _start(self, asked: Command, *, merged: bool = False) -> CommandRun:
        """Start a command, confined and limited. With `merged`, its stderr goes into stdout."""
        self._require_alive()
        argv, cwd, env = asked.argv, asked.cwd, asked.env
        if asked.user not in ("", "agent", "1000"):
            raise RequestRefused(f"user {asked.user!r}: mode {self._backend.confinement.name} has agent alone")
        if any("\0" in word for word in (*argv, cwd or "", *(env or {}), *(env or {}).values())):
            raise RequestRefused("a word of the command has a zero byte, which no program can be given")
        own = {"HOME": "/home/agent", "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash"}
        full = {**ENVIRONMENT, **own, **dict(self.image.config.env), **dict(self.spec.env), **(env or {})}
        where = os.path.normpath(os.path.join(self.spec.workdir, cwd or "."))  # noqa: PTH118
        limits = self.spec.limits
        used = {"memory_mb": limits.memory_mb, "file_mb": limits.file_mb, "cpu_seconds": limits.cpu_seconds}
        job = {**self._backend.confinement.job(self.folder, argv, where, full), "limits": used}
        self._commands.append(shell_line(asked.command, cwd, env) + (" &" if merged else ""))
        run = await CommandRun.start(job, f"box {self.id}", merged=merged)
        self._runs[run] = argv[-1][:80]
        return run

    async def _feed(self, run: CommandRun, stdin: bytes) -> None:
        """Write `stdin` and close it. The command may end before it reads everything."""
        assert run.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            run.process.stdin.write(stdin)
            await run.process.stdin.drain()
        run.process.stdin.close()

    # -- files

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        return await self._with_path(path, lambda top, rest: files.read(top, rest, max_bytes, _NO_PROC))

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        largest = self.spec.limits.file_mb
        if len(data) > largest << 20:
            raise RequestRefused(f"{len(data)} bytes for {path}; a file has at most file_mb = {largest} MiB")
        await self._with_path(
            path, lambda top, rest: files.write(top, rest, data, executable=executable, proc=_NO_PROC)
        )

    async def list_files(self, path: str = ".") -> list[str]:
        return await self._with_path(path, files.list_below)

    async def layout(self, paths: Sequence[str]) -> bytes:
        found: list[str] = []
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                found += await self._with_path(path, files.layout_below)
        return "\0".join(found).encode("utf-8", "surrogateescape")

    async def read_tree(self, path: str = ".", *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        def read(top: str, rest: str) -> bytes:
            entries, contents = trees.read(top, rest, max_bytes, max_files, _NO_PROC)
            return pack([Member(*entry) for entry in entries], contents)  # type: ignore[arg-type]

        return await self._with_path(path, read)

    async def write_tree(self, path: str, tar: bytes, *, max_bytes: int = 256 << 20, max_files: int = 10_000) -> None:
        checked = await asyncio.to_thread(lambda: Tar(tar, max_bytes=max_bytes, max_files=max_files))
        largest = self.spec.limits.file_mb << 20
        for member in checked.members:
            if member.size > largest:
                raise RequestRefused(f"{member.name} has {member.size} bytes; a file has at most {largest}")

        def write(top: str, rest: str) -> None:
            trees.check(top, rest, [member.entry() for member in checked.members])
            for batch in checked.batches(4 << 20):
                entries = [member.entry() for member in batch]
                trees.write(top, rest, entries, checked.contents(batch), owners=False)

        await self._with_path(path, write)

    async def _with_path(self, path: str, work: Callable[[str, str], T]) -> T:
        """Call `work(top, rest)` in a thread, where `rest` is the path below the folder `top`. For an absolute path,
        `top` is the box's folder on the host; for a relative one, the workdir. `work` must follow no link out of `top`.

        The box may have replaced its workdir by a link. So the workdir is opened without leaving the box's folder, and
        `top` is the path of the open folder."""
        self._require_alive()
        root = str(self.folder.root)
        if path.startswith(_NOT_FILES):
            raise RequestRefused(f"{path} is not among the box's own files; a command can look there")

        def work_below() -> T:
            if path.startswith("/"):
                return work(root, path.lstrip("/") or ".")
            with files.opened_folder(root, self.spec.workdir.lstrip("/") or ".") as workdir:
                return work(f"/proc/self/fd/{workdir}", path)

        try:
            return await asyncio.to_thread(work_below)
        except files.Refused as refusal:
            raise RequestRefused(f"box {self.id}: {refusal}") from None
        except OSError as error:
            if error.errno in FULL_DISK:
                raise DiskFull(f"box {self.id}: the host's disk is full") from error
            if error.errno in files.OF_THE_PATH:
                raise RequestRefused(f"box {self.id}: {path[:200]}: {error.strerror}") from None
            if not isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError | PermissionError):
                raise SandboxError(f"box {self.id}: {error}") from error
            raise

    async def stats(self) -> BoxStats:
        self._require_alive()
        usages = [run.usage() for run in self._runs]
        size = await asyncio.to_thread(self._backend.size, self.folder.root)
        before = await asyncio.to_thread(self._backend.size_of, self.image)
        return BoxStats(
            processes=sum(count for count, _, _ in usages),
            memory_bytes=sum(memory for _, memory, _ in usages),
            cpu_seconds=self._spent + sum(seconds for _, _, seconds in usages),
            disk_bytes=max(0, size - before),
            seconds=time.monotonic() - self._made,
        )

    # -- copies and the end

    def _require_no_commands(self) -> None:
        if self._runs:
            names = printable("; ".join(self._runs.values()))
            raise BoxBusy(f"box {self.id} runs commands that may write: {names}: wait, or kill=True")

    async def snapshot(self) -> str:
        self._require_alive()
        self._require_no_commands()
        return await self._backend.keep(self)

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        self._require_alive()
        if count < 1:
            raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
        if kill:
            await self._end_runs()
        self._require_no_commands()
        return [await self._backend.copy_of(self) for _ in range(count)]

    async def _end_runs(self) -> None:
        runs = list(self._runs)
        for run in runs:
            run.end("killed")
        await asyncio.gather(*(run.process.wait() for run in runs))
        for run in runs:
            self._runs.pop(run, None)

    async def destroy(self) -> None:
        self._ended = True
        await self._end_runs()
        await self._backend.forget(self)

    def _require_alive(self) -> None:
        if self._ended:
            raise self._lost()

    def _lost(self) -> SandboxLost:
        return SandboxLost(f"box {self.id} has ended; it cannot be used again, make a new one")
