"""Listens, and ends in order: a server that is told to stop takes no new requests, lets those in flight finish for a
while, then ends them with an error, never in silence."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from etude.serve.app import App
from etude.serve.limits import ServeError

_HEAD_SECONDS = 10.0
"""Time that a client has to send the head of a request, once it began or connected."""
_HEAD_BYTES = 64 << 10
_KEEP_ALIVE_SECONDS = 75
_AFTER_DRAIN_SECONDS = 5
"""Time that answers have to send the error with which they were ended."""
_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one. Raises ServeError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
    except OSError as error:
        raise ServeError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return opened


def is_private(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(
    app: App,
    listening: socket.socket,
    *,
    drain: float,
    ready: Callable[[], None] = lambda: None,
    until: asyncio.Event | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve until a signal comes, or `until` is set. The first lets the requests in flight finish for `drain` seconds,
    a second signal none. `ready` is called once the server answers, `told` with what users should know."""
    config = uvicorn.Config(
        app.asgi,
        http=_Protocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_AFTER_DRAIN_SECONDS,
    )
    server = _Server(config, app, drain, ready, told)
    ending = asyncio.create_task(server.end_with(until)) if until is not None else None
    try:
        await server.serve(sockets=[listening])
    finally:
        if ending is not None:
            ending.cancel()


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        app: App,
        drain: float,
        ready: Callable[[], None],
        told: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._app, self._drain, self._ready, self._told = app, drain, ready, told
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    async def end_with(self, event: asyncio.Event) -> None:
        await event.wait()
        self._end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        self._told(f"ending: {self._app.admission.in_flight} requests in flight have {self._drain:g} s to finish")
        self._draining = asyncio.create_task(self._drained())

    async def _drained(self) -> None:
        await self._app.drain(self._drain)
        self.should_exit = True


class _Protocol(H11Protocol):
    """uvicorn's protocol, with a deadline for the head of a request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._head_is_there()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def _head_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def base_url(listening: socket.socket) -> str:
    address: Any = listening.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"
