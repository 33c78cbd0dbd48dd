"""A stage for the proxy without a box: a real host on loopback, and connections to it as a box would open them."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from etude.sandbox import Egress
from etude.sandbox.egress import Upstream, read_log
from etude.sandbox.egress.connection import Connection
from etude.sandbox.egress.log import BoxLog, EgressLog
from etude.sandbox.egress.policy import Policy

NAME = "files.example.org"


class Stage:
    def __init__(self, folder: Path, egress: Egress) -> None:
        self.folder, self.policy = folder, Policy(egress)
        self.heads: list[bytes] = []
        """What the real host was asked."""
        self.asked = asyncio.Event()
        self.connections = 0
        self.port = 0
        self.front = 0

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(read_log(self.folder))

    async def open(self) -> tuple[StreamReader, StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.front)

    async def say(self, data: bytes) -> bytes:
        """All that comes back until the connection ends."""
        reader, writer = await self.open()
        writer.write(data)
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        return answer

    async def broken(self, reader: StreamReader) -> bool:
        """Whether an answer ends before it is whole."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await (reader.readuntil(b"0\r\n\r\n") if b"chunked" in head else reader.readexactly(9))
        except (ConnectionError, asyncio.IncompleteReadError):
            return True
        return False

    async def head(self, reader: StreamReader) -> bytes:
        data = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(data)
        self.asked.set()
        return data


Handler = Callable[[Stage, StreamReader, StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def staged(folder: Path, answer: Handler, *, proxy_login: str = "", **policy: Any) -> AsyncIterator[Stage]:
    """With a login for it, the real host plays the proxy by which the policy is reached."""
    stage = Stage(folder, Egress("test", (NAME,), **policy))
    log = BoxLog(EgressLog(folder, "test"), "box", "test")

    async def real_host(reader: StreamReader, writer: StreamWriter) -> None:
        stage.connections += 1
        with contextlib.suppress(OSError, EOFError):
            await answer(stage, reader, writer)
        writer.close()

    async def front(reader: StreamReader, writer: StreamWriter) -> None:
        await Connection(reader, writer, NAME, 80, False, None, stage.policy, upstream, log).serve()

    async with (
        await asyncio.start_server(real_host, "127.0.0.1", 0) as host,
        await asyncio.start_server(front, "127.0.0.1", 0, limit=1 << 16) as served,
    ):
        stage.port, stage.front = (server.sockets[0].getsockname()[1] for server in (host, served))
        upstream = Upstream({} if proxy_login else {(NAME, 80): ("127.0.0.1", stage.port)})
        if proxy_login:
            by_proxy = f"http://{proxy_login}@127.0.0.1:{stage.port}"
            stage.policy = Policy(Egress("test", (NAME,), proxy=by_proxy, **policy))
        yield stage


def fixed(answer: bytes, *, times: int = 1) -> Handler:
    """A host that answers every request alike, up to so many on one connection, and then closes it."""

    async def handle(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
        for _ in range(times):
            await stage.head(reader)
            writer.write(answer)
            await writer.drain()

    return handle
