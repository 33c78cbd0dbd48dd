"""A box as seen by the process that owns it. Every request goes through a channel to the box's pid 1, which is this
project's init."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from etude.sandbox.commands import shell_line
from etude.sandbox.contract import (
    BoxBusy,
    BoxSpec,
    BoxStats,
    ExecResult,
    ImageError,
    Process,
    RequestRefused,
    SandboxLost,
)
from etude.sandbox.cpu_share import ShareMeter
from etude.sandbox.inside.kernel import IMAGE
from etude.sandbox.inside.wire import printable
from etude.sandbox.options import Command, ExecOptions, StartOptions
from etude.sandbox.served.channel import ANSWER_SECONDS, NO_FIELDS, NUMBER, Channel, Fields
from etude.sandbox.served.process import ServedProcess
from etude.sandbox.tars import Member, Tar, pack

_BATCH_BYTES = 4 << 20
"""Maximum bytes of a file tree that are sent to the box in one request. The box's pid 1 keeps them in memory until it
has written them."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """What is known about a box's processes while they are stopped."""

    still: bool
    """Whether the box has no living process, so that nothing can change its files."""
    free: str
    """Why some process could not be held, so that a signal from inside may wake it; "" if all are held."""


_RESULT: Fields = {
    "code": (int,),
    "split": (int,),
    "seconds": NUMBER,
    "cpu_seconds": NUMBER,
    "limit": (str,),
    "truncated": (bool,),
}
_STATS: Fields = {"processes": (int,), "memory": (int,), "cpu_seconds": NUMBER, "disk": (int,), "seconds": NUMBER}


class ServedBox:
    """A box whose pid 1 is this project's init, in whatever way it is isolated. It belongs to the event loop in which
    it was made."""

    def __init__(self, id: str, spec: BoxSpec, channel: Channel) -> None:
        self.id, self.spec = id, spec
        self._channel = channel
        self._commands: list[str] = []

    def _failed_step(self, answer: dict[str, Any]) -> tuple[str, str]:
        """Return the step in which init failed to make the box, and the error. The step is "lost" if init ended without
        an answer. Raises the error if the request or the image is at fault."""
        step, error = answer.get("step", "lost"), answer.get("error", "its process ended while it was being made")
        if step == "user":
            raise RequestRefused(f"box {self.id}: {error}")
        if step.startswith(IMAGE):
            raise ImageError(f"image {self.spec.image}: {error}; a box needs a folder there: remove what the image has")
        return step, error

    async def exec(self, command: list[str] | str, **options: Unpack[ExecOptions]) -> ExecResult:
        asked = Command(command, **options)
        header = self._request(asked) | {"op": "exec", "stream": asked.on_output is not None}
        watch = ShareMeter()
        ticket, streamed = self._channel.next_ticket(), {1: bytearray(), 2: bytearray()}

        def on_frame(frame: dict[str, Any], data: bytes) -> None:
            assert asked.on_output is not None
            streamed[frame["stream"]] += data
            asked.on_output(frame["stream"], data)

        if asked.on_output is not None:
            self._channel.listen(ticket, "stream", on_frame)
        try:
            with self._recorded(shell_line(command, asked.cwd, asked.env)):
                patience = asked.timeout + ANSWER_SECONDS
                answer, body = await self._channel.request(
                    header, asked.stdin, patience=patience, ticket=ticket, fields=_RESULT
                )
        finally:
            self._channel.ignore(ticket)
        return ExecResult(
            code=answer["code"],
            stdout=body[: answer["split"]] or bytes(streamed[1]),
            stderr=body[answer["split"] :] or bytes(streamed[2]),
            seconds=answer["seconds"],
            timed_out=answer["limit"] == "time",
            truncated=answer["truncated"],
            limit=answer["limit"],
            share=watch.share(answer["cpu_seconds"]),
        )

    async def start(self, command: list[str] | str, **options: Unpack[StartOptions]) -> Process:
        asked = Command(command, **options)
        terminal = asked.terminal and [asked.terminal.rows, asked.terminal.columns]
        header = self._request(asked) | {"op": "start", "terminal": terminal}
        process = ServedProcess(self._channel, self._channel.next_ticket())
        try:
            with self._recorded(shell_line(command, asked.cwd, asked.env) + " &"):
                await self._channel.request(header, patience=ANSWER_SECONDS, ticket=process.id)
        except BaseException:
            self._channel.ignore(process.id)
            raise
        return process

    def _request(self, asked: Command) -> dict[str, Any]:
        return {
            "argv": asked.argv,
            "cwd": asked.cwd if asked.cwd is None or asked.cwd.startswith("/") else f"{self.spec.workdir}/{asked.cwd}",
            "env": asked.env or {},
            "timeout": asked.timeout,
            "user": asked.user,
        }

    @contextlib.contextmanager
    def _recorded(self, line: str) -> Iterator[None]:
        """Record a shell line in `commands`, the box's history, during the block that starts the command. If init
        refuses the command, the line is removed again."""
        self._commands.append(line)
        try:
            yield
        except RequestRefused:
            self._commands.remove(line)
            raise

    @property
    def commands(self) -> list[str]:
        return list(self._commands)

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        _, body = await self._ask({"op": "read", "path": path, "max_bytes": max_bytes})
        return body

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await self._ask({"op": "write", "path": path, "executable": executable}, data)

    async def list_files(self, path: str = ".") -> list[str]:
        _, body = await self._ask({"op": "list", "path": path})
        return body.decode("utf-8", "surrogateescape").split("\0") if body else []

    async def layout(self, paths: Sequence[str]) -> bytes:
        _, body = await self._ask({"op": "layout", "paths": list(paths)})
        return body

    async def read_tree(self, path: str = ".", *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        request = {"op": "read_tree", "path": path, "max_bytes": max_bytes, "max_files": max_files}
        answer, contents = await self._ask(request, fields={"entries": (list,)})
        try:
            members = [Member.of_entry(entry) for entry in answer["entries"]]
            return await asyncio.to_thread(pack, members, contents)
        except ValueError:
            raise self._channel.misbehaved("read_tree") from None

    async def write_tree(self, path: str, tar: bytes, *, max_bytes: int = 256 << 20, max_files: int = 10_000) -> None:
        checked = await asyncio.to_thread(lambda: Tar(tar, max_bytes=max_bytes, max_files=max_files))
        largest = self.spec.limits.file_mb << 20
        for member in checked.members:
            if member.size > largest:
                raise RequestRefused(f"{member.name} has {member.size} bytes; a file has at most {largest}")
        entries = [member.entry() for member in checked.members]
        await self._ask({"op": "check_tree", "path": path, "entries": entries})
        for batch in checked.batches(_BATCH_BYTES):
            request = {"op": "write_tree", "path": path, "entries": [member.entry() for member in batch]}
            await self._ask(request, await asyncio.to_thread(checked.contents, batch))

    async def stats(self) -> BoxStats:
        answer, _ = await self._ask({"op": "stats"}, fields=_STATS)
        return BoxStats(
            processes=answer["processes"],
            memory_bytes=answer["memory"],
            cpu_seconds=answer["cpu_seconds"],
            disk_bytes=answer["disk"],
            seconds=answer["seconds"],
        )

    async def _ask(
        self, header: dict[str, Any], payload: bytes = b"", *, fields: Fields = NO_FIELDS
    ) -> tuple[dict[str, Any], bytes]:
        return await self._channel.request(header, payload, patience=ANSWER_SECONDS, fields=fields)

    # -- frozen copies

    @contextlib.asynccontextmanager
    async def frozen(self, *, kill: bool) -> AsyncIterator[Frozen]:
        """Stop and hold all processes of the box during the block; with `kill`, kill them. Raises BoxBusy if a process
        has a file open for writing or does not stop."""
        facts: Fields = {"writers": (list,), "still": (bool,), "free": (str,)}
        answer, _ = await self._ask({"op": "freeze", "kill": kill}, fields=facts)
        if answer["writers"]:
            writers = printable("; ".join(map(str, answer["writers"])))
            raise BoxBusy(f"box {self.id} is being written to by {writers}: wait, or kill=True")
        try:
            yield Frozen(answer["still"], printable(answer["free"]))
        finally:
            with contextlib.suppress(SandboxLost):
                await self._ask({"op": "thaw"})

    def inherit(self, commands: list[str]) -> None:
        self._commands[:0] = commands
