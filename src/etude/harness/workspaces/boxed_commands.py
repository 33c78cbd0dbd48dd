"""Runs commands over files in memory, in a box that is made when the first command needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from etude.harness.workspaces.terminal import Place
from etude.harness.workspaces.workspace import AGENT_ENV
from etude.sandbox.contract import Box, DiskFull, ExecResult, RequestRefused, SandboxLost

AGENTS_DOING = (RequestRefused, DiskFull, OSError)
"""Errors that a box raises when its agent made files unreadable, filled the disk, or put links and folders in the way.
They are not our fault, and do not end a rollout."""


class BoxedCommands(ABC):
    """Base class for running commands in a box; subclasses decide how files get into the box and back."""

    def __init__(self) -> None:
        self._box: Box | None = None

    @abstractmethod
    async def _synced(self, files: Mapping[str, bytes]) -> Box:
        """Write the files to the box, and return the box."""

    @abstractmethod
    async def _read_back(self, box: Box, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Read the files back. Returns `files` itself if nothing changed, so that comparing stays cheap."""

    @abstractmethod
    def _forget(self) -> None:
        """Discard all state about the box, which is gone."""

    async def run(
        self, files: Mapping[str, bytes], command: str, *, timeout: float
    ) -> tuple[ExecResult, Mapping[str, bytes]]:
        async with self._box_may_die():
            return await self._carry_out(files, command, timeout)

    async def _carry_out(
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
            # The current files cannot be read: the agent is told, and is judged by the last ones that could.
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
            return files  # the box died meanwhile
        try:
            async with self._box_may_die():
                return await self._read_back(self._box, files)
        except AGENTS_DOING:
            return files  # the files can no longer be read, and count as before

    @asynccontextmanager
    async def _box_may_die(self) -> AsyncIterator[None]:
        """Close a lost box and re-raise: the next command gets a new one with the files as they were."""
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
