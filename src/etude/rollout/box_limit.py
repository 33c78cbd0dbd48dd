"""Limits how many box operations of a process run at once, so that a command's time limit measures the command and not
the load of other boxes.

A semaphore counts the operations: creating a box, starting a process and running a foreground command each hold a slot.
A box whose agent waits for the model holds none. So lockstep generation, where every rollout waits for all others,
cannot deadlock here. A background process gives its slot back once it has started, since it may live as long as its
box.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Unpack

from etude.sandbox.contract import (
    Box,
    BoxSpec,
    BoxStats,
    BuildTerms,
    Capability,
    ExecResult,
    Feature,
    Process,
    RequestRefused,
    Sandboxes,
    TriedBuild,
    TriesBuilds,
)
from etude.sandbox.options import BuildOptions, ExecOptions, StartOptions


class GatedSandboxes:
    """Lets at most `at_once` box creations and commands run at a time."""

    def __init__(self, inner: Sandboxes, at_once: int) -> None:
        self._inner = inner
        self._gate = asyncio.Semaphore(at_once)

    @property
    def features(self) -> frozenset[Feature]:
        return self._inner.features

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._inner.capabilities

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        return await self._inner.add_image(files, base=base, workdir=workdir)

    async def import_image(self, source: Path) -> str:
        return await self._inner.import_image(source)

    async def pull_image(self, reference: str) -> str:
        return await self._inner.pull_image(reference)

    async def build_image(self, context: Path, **options: Unpack[BuildOptions]) -> str:
        return await self._inner.build_image(context, **options)

    def try_build(
        self,
        context: Path,
        terms: BuildTerms,
        *,
        arguments: dict[str, str] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> AbstractAsyncContextManager[TriedBuild]:
        if not isinstance(self._inner, TriesBuilds):
            raise RequestRefused('this sandbox backend cannot run trial builds; set sandbox.mode = "embedded" for them')
        return self._inner.try_build(context, terms, arguments=arguments, say=say)

    async def create(self, spec: BoxSpec) -> Box:
        async with self._gate:
            return _GatedBox(await self._inner.create(spec), self._gate)

    async def close(self) -> None:
        await self._inner.close()


class _GatedBox:
    def __init__(self, inner: Box, gate: asyncio.Semaphore) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def id(self) -> str:
        return self._inner.id

    async def exec(self, command: list[str] | str, **options: Unpack[ExecOptions]) -> ExecResult:
        async with self._gate:
            return await self._inner.exec(command, **options)

    async def start(self, command: list[str] | str, **options: Unpack[StartOptions]) -> Process:
        async with self._gate:
            return await self._inner.start(command, **options)

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        return await self._inner.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await self._inner.write_file(path, data, executable=executable)

    async def list_files(self, path: str = ".") -> list[str]:
        return await self._inner.list_files(path)

    async def layout(self, paths: Sequence[str]) -> bytes:
        return await self._inner.layout(paths)

    async def read_tree(self, path: str = ".", *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        return await self._inner.read_tree(path, max_bytes=max_bytes, max_files=max_files)

    async def write_tree(self, path: str, tar: bytes, *, max_bytes: int = 256 << 20, max_files: int = 10_000) -> None:
        await self._inner.write_tree(path, tar, max_bytes=max_bytes, max_files=max_files)

    async def stats(self) -> BoxStats:
        return await self._inner.stats()

    async def snapshot(self) -> str:
        return await self._inner.snapshot()

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        return [_GatedBox(box, self._gate) for box in await self._inner.fork(count, kill=kill)]

    @property
    def commands(self) -> list[str]:
        return self._inner.commands

    async def destroy(self) -> None:
        await self._inner.destroy()
