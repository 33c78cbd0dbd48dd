"""A box on another host, as its client sees it: each request is one call to that host's service.

A command is never sent twice. If the host does not answer, for whatever reason, the box counts as lost for its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Protocol, Unpack

from etude.cluster.contract import Remote
from etude.sandbox.contract import Box, BoxStats, ExecResult, Process, SandboxError
from etude.sandbox.fleet.host import CommandOutcome
from etude.sandbox.fleet.remote_errors import as_sandbox_errors, unwrap
from etude.sandbox.fleet.remote_process import RemoteProcess
from etude.sandbox.options import ExecOptions, StartOptions

_ANSWER_SECONDS = 60.0
"""Seconds that a host may take for its answer beyond a command's own timeout: enough to transfer large folder trees."""


class Dispatcher(Protocol):
    """The methods of the fleet's client (FleetSandboxes) that a RemoteBox calls. The client passes these calls on to
    the fleet's dispatcher."""

    async def ask(self, method: str, *args: Any, deadline: float = ...) -> Any: ...

    async def fork(self, parent: str, count: int, kill: bool) -> list[str]: ...


class RemoteBox:
    def __init__(self, fleet: Dispatcher, id: str, host_name: str, host: Remote) -> None:
        self.id, self.host_name = id, host_name
        self._fleet, self._host = fleet, host
        self._commands: list[str] = []

    # -- commands

    async def exec(self, command: list[str] | str, **options: Unpack[ExecOptions]) -> ExecResult:
        ticket, known = secrets.token_hex(8), len(self._commands)
        on_output = options.pop("on_output", None)
        args, deadline = (self.id, ticket, known, command, options), max(options["timeout"], 0.0) + _ANSWER_SECONDS
        try:
            with as_sandbox_errors(self._description):
                if on_output is None:
                    outcome = await self._host.call("exec", *args, deadline=deadline)
                else:
                    async for item in self._host.stream("exec_streamed", *args, deadline=deadline):
                        outcome = item
                        if not isinstance(item, CommandOutcome):
                            for stream, data in item:
                                on_output(stream, data)
        except BaseException as error:
            if not isinstance(error, SandboxError):  # Cancelled, or on_output failed: end the command.
                with contextlib.suppress(SandboxError):
                    await asyncio.shield(self.call("cancel", ticket))
            raise
        result: ExecResult = self._noted(outcome, known)
        return result

    async def start(self, command: list[str] | str, **options: Unpack[StartOptions]) -> Process:
        known = len(self._commands)
        return RemoteProcess(
            self.call, self.id, self._noted(await self.call("start", self.id, known, command, options), known)
        )

    def _noted(self, outcome: CommandOutcome, known: int) -> Any:
        """Add the box's new commands to `_commands`, which had `known` entries when the request was sent. Return the
        result of the request."""
        if known + len(outcome.commands) > len(self._commands):
            self._commands[known:] = outcome.commands
        return outcome.result

    @property
    def commands(self) -> list[str]:
        return list(self._commands)

    # -- files

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        data: bytes = await self._ask("read_file", path, max_bytes=max_bytes)
        return data

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await self._ask("write_file", path, data, executable=executable)

    async def list_files(self, path: str = ".") -> list[str]:
        names: list[str] = await self._ask("list_files", path)
        return names

    async def layout(self, paths: Sequence[str]) -> bytes:
        found: bytes = await self._ask("layout", list(paths))
        return found

    async def read_tree(self, path: str = ".", *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        tar: bytes = await self._ask("read_tree", path, max_bytes=max_bytes, max_files=max_files)
        return tar

    async def write_tree(self, path: str, tar: bytes, *, max_bytes: int = 256 << 20, max_files: int = 10_000) -> None:
        await self._ask("write_tree", path, tar, max_bytes=max_bytes, max_files=max_files)

    async def stats(self) -> BoxStats:
        stats: BoxStats = await self._ask("stats")
        return stats

    # -- copies and the end

    async def snapshot(self) -> str:
        """Save the box as an image. The image exists only on this box's host, so new boxes of it are placed there."""
        image: str = await self._ask("snapshot")
        await self._fleet.ask("learn_image", image, self.host_name, None)
        return image

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        children: list[Box] = []
        for id in await self._fleet.fork(self.id, count, kill):
            child = RemoteBox(self._fleet, id, self.host_name, self._host)
            child._commands = list(self._commands)
            children.append(child)
        return children

    async def destroy(self) -> None:
        await self._fleet.ask("end", self.id, deadline=_ANSWER_SECONDS)

    # -- calls

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        return await self.call("ask", self.id, method, args, options)

    async def call(self, method: str, *args: Any, patience: float = 0.0) -> Any:
        """Call the host's service. `patience` is how many seconds the method itself may take."""
        with as_sandbox_errors(self._description):
            return unwrap(await self._host.call(method, *args, deadline=patience + _ANSWER_SECONDS))

    @property
    def _description(self) -> str:
        return f"box {self.id}: its host {self.host_name}"
