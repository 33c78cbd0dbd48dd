"""Base class that runs commands in a box on the caller's files. The first command that needs the box creates it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from etude.harness.workspaces.terminal import TerminalHost
from etude.harness.workspaces.workspace import AGENT_ENV
from etude.sandbox.contract import Box, DiskFull, ExecResult, RequestRefused, SandboxLost

AGENTS_DOING = (RequestRefused, DiskFull, OSError)
"""Errors that a box raises if the agent made files unreadable, filled the disk, or replaced files by links or folders.
They are not infrastructure failures and do not end a rollout."""


class BoxedCommands(ABC):
    """Base class of runners; subclasses copy the caller's files into the box and back."""

    def __init__(self) -> None:
        self._box: Box | None = None

    @abstractmethod
    async def _synced(self, files: Mapping[str, bytes]) -> Box:
        """Write the files to the box, which is created if there is none, and return it."""

    @abstractmethod
    async def _read_back(self, box: Box, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the box's files. Returns the object `files` if nothing changed, so that comparisons are cheap."""

    @abstractmethod
    def _forget(self) -> None:
        """Discard all state about the box, which was lost or closed."""

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
            # The output tells the agent. A verifier later gets the files as they were last readable.
            said = f"the files can no longer be read, and count as before this command: {error}\n"
            result.stderr += said.encode("utf-8", "replace")
            after = files
        return result, after

    async def enter(self, files: Mapping[str, bytes]) -> TerminalHost:
        async with self._box_may_die():
            return await self._entered(files)

    async def _entered(self, files: Mapping[str, bytes]) -> Box:
        try:
            return await self._synced(files)
        except AGENTS_DOING as error:
            raise RequestRefused(f"the files cannot be written where commands run: {error}") from error

    async def read_back(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        if self._box is None:
            return files  # the box was lost while the terminals were used
        try:
            async with self._box_may_die():
                return await self._read_back(self._box, files)
        except AGENTS_DOING:
            return files  # unreadable files keep their last known contents

    @asynccontextmanager
    async def _box_may_die(self) -> AsyncIterator[None]:
        """Discard the box if the block raises SandboxLost. The next command gets a new box with the last known
        files."""
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
