"""Commands over files in memory, run in a box that is made when the first of them needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from etude.harness.terminal import Place
from etude.harness.workspace import AGENT_ENV
from etude.sandbox.contract import Box, DiskFull, ExecResult, RequestRefused, SandboxLost

AGENTS_DOING = (RequestRefused, DiskFull, OSError)
"""What a box says when its agent has closed files, filled the disk, or put links and folders in the way: no fault of
ours, and nothing that ends a rollout."""


class BoxedCommands(ABC):
    """What is alike however the files get into the box and back."""

    def __init__(self) -> None:
        self._box: Box | None = None

    @abstractmethod
    async def _synced(self, files: Mapping[str, bytes]) -> Box:
        """The box, with the files as they are."""

    @abstractmethod
    async def _read_back(self, box: Box, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The files as the box has them now; the same object where they are `files`, so that comparing stays cheap."""

    @abstractmethod
    def _forget(self) -> None:
        """The box is gone, and with it all that was known of it."""

    async def run(
        self, files: Mapping[str, bytes], command: str, *, timeout: float
    ) -> tuple[ExecResult, Mapping[str, bytes]]:
        async with self._box_may_die():
            return await self._really(files, command, timeout)

    async def _really(
        self, files: Mapping[str, bytes], command: str, timeout: float
    ) -> tuple[ExecResult, Mapping[str, bytes]]:
        try:
            box = await self._synced(files)
        except AGENTS_DOING as error:
            said = f"the files cannot be written where commands run: {error}\n"
            return ExecResult(126, b"", said.encode("utf-8", "replace"), 0.0), files
        result = await box.exec(command, timeout=timeout, env=AGENT_ENV)
        try:
            after = await self._read_back(box, files)
        except AGENTS_DOING as error:
            # Its later files are nowhere to be seen: the agent is told, and is judged by those that were.
            said = f"the files can no longer be read, and count as before this command: {error}\n"
            result.stderr += said.encode("utf-8", "replace")
            after = files
        return result, after

    async def enter(self, files: Mapping[str, bytes]) -> Place:
        async with self._box_may_die():
            return await self._entered(files)

    async def _entered(self, files: Mapping[str, bytes]) -> Box:
        try:
            return await self._synced(files)
        except AGENTS_DOING as error:
            raise RequestRefused(f"the files cannot be written where commands run: {error}") from error

    async def leave(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        if self._box is None:
            return files  # it died meanwhile
        try:
            async with self._box_may_die():
                return await self._read_back(self._box, files)
        except AGENTS_DOING:
            return files  # they can no longer be read, and count as before

    @asynccontextmanager
    async def _box_may_die(self) -> AsyncIterator[None]:
        """Whoever goes on after that gets another box, with the files as they were."""
        try:
            yield
        except SandboxLost:
            await self.close()
            raise

    async def close(self) -> None:
        box, self._box = self._box, None
        self._forget()
        if box is not None:
            await box.destroy()
