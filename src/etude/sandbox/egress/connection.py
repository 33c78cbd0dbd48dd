"""Serves one HTTP/1.1 connection of a box: checks, forwards and logs its requests, one after another.

The host name is known before the first byte: it is the name whose address the box connected to. The names in a request
(TLS server name, Host) must agree with it, or the request is refused. So no request can reach another host under an
allowed name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from etude.sandbox.egress.dialing import Unreachable, proxy_refusal
from etude.sandbox.egress.http_body import PIECE, BrokenTransfer, close, cut, flush, pieces, read_head, send_body
from etude.sandbox.egress.http_head import (
    BadHead,
    Fields,
    Framing,
    Request,
    Response,
    carries_credentials,
    parse_request,
    parse_response,
    write_head,
)
from etude.sandbox.egress.log import BoxLog
from etude.sandbox.egress.policy import DEFAULT_PORTS, Policy, host_name
from etude.sandbox.egress.upstream import Upstream, UpstreamConnection
from etude.sandbox.proxies import UpstreamProxy

HEAD_SECONDS, IDLE_SECONDS, ANSWER_SECONDS = 15.0, 60.0, 120.0
_LINGER_BYTES = 1 << 20
_MOST_INTERIM = 10
_HANDLED_HERE = {"expect", "max-forwards"}
"""Request fields that the proxy acts on itself and does not forward."""
_UDP_FIELDS = {"alt-svc"}
"""Response fields by which a host offers its service over UDP. They are removed, since the proxy forwards no UDP."""
_PROXY_FIELDS = {"via", "x-cache", "x-cache-lookup", "x-squid-error"}
"""Response fields that reveal a proxy. They are removed if an upstream proxy has passed on the response."""


@dataclass
class ExchangeProgress:
    sent: int = 0
    """Bytes of the request's body that the box has sent."""
    received: int = 0
    """Bytes of the response's body that the real host has sent."""
    status: int = 0
    """HTTP status of the response that is being passed on to the box; 0 before it begins."""


@dataclass
class Connection:
    """One connection of a box to an allowed host name and port, as the egress proxy serves it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: str
    """The host name for which the name server has assigned the address that the box connected to."""
    port: int
    tls: bool
    server_name: str | None
    """The server name in the box's TLS handshake; None if there was none."""
    policy: Policy
    upstream: Upstream
    log: BoxLog
    _upstream_connection: UpstreamConnection | None = field(default=None, init=False)
    """Open connection to the real host, kept for further requests of the box."""

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                pass
            await close(self.writer)
        except (BrokenTransfer, ConnectionError):
            pass  # Already logged. The box sees a broken connection, as it would without the proxy.
        finally:
            cut(self.writer)
            self._close_upstream()

    async def _serve_one(self) -> bool:
        """Serve one request. Return whether another request may follow on this connection."""
        request = None
        try:
            data = await read_head(self.reader, idle=IDLE_SECONDS, patience=HEAD_SECONDS)
            if not data:
                return False
            request = parse_request(data)
            self._check(request)
        except BadHead as error:
            await self._refuse(error.status, str(error), request)
            return False
        return await self._exchange(request)

    def _check(self, request: Request) -> None:
        """Raise BadHead if the request is for another host, port or protocol than this connection."""
        if self.tls and host_name(self.server_name or "") != self.name:
            raise BadHead(f"a TLS handshake for {self.server_name or 'no name'} on a connection to {self.name}", 421)
        host, _, port = request.host.partition(":")
        if host_name(host) != self.name or port not in ("", str(self.port)):
            raise BadHead(f"a request for host {request.host!r} on a connection to {self.name}:{self.port}", 421)
        upgrades = request.options("upgrade") - {"h2c"}
        if upgrades:
            raise BadHead(f"an upgrade to {', '.join(sorted(upgrades))}; only HTTP/1.1 passes", 501)

    async def _refuse(self, status: int, reason: str, request: Request | None) -> None:
        self.log.refused(reason, **self._log_fields(request), status=status)
        await self._respond(status, reason)

    async def _respond(self, status: int, reason: str) -> None:
        """Send the box an error response of the proxy itself, and end the connection."""
        body = f"egress: {reason}\n".encode()
        fields = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        head = write_head(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", [*fields, ("Connection", "close")])
        self.writer.write(head + body)
        await flush(self.writer)
        if self.writer.can_write_eof():
            self.writer.write_eof()
        # Closing a connection with unread bytes resets it, and the box might lose the response.
        left = _LINGER_BYTES
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                while left > 0 and (piece := await self.reader.read(PIECE)):
                    left -= len(piece)

    def _log_fields(self, request: Request | None) -> dict[str, object]:
        fields: dict[str, object] = {"scheme": "https" if self.tls else "http", "host": self.name, "port": self.port}
        if request is None:
            return fields
        return {
            **fields,
            "method": request.method,
            "path": request.path,
            "query": len(request.target) - len(request.path),
        }

    # -- one request

    async def _exchange(self, request: Request) -> bool:
        """Forward one request and its response, and log both. Return whether another request may follow."""
        began, progress, fault = time.monotonic(), ExchangeProgress(), "the box ended"
        try:
            again = await self._forward(request, progress)
            fault = ""
            return again
        except (Unreachable, BadHead, BrokenTransfer) as error:
            fault = str(error)
            if progress.status:  # The response has begun, so it can no longer be an error response. It must break off.
                raise BrokenTransfer(fault) from error
            progress.status = 504 if isinstance(error, BrokenTransfer) else 502
        finally:
            spent = round((time.monotonic() - began) * 1000, 1)
            moved = {"sent": progress.sent, "received": progress.received, "ms": spent}
            self.log.passed(
                **self._log_fields(request), status=progress.status, **moved, **({"fault": fault} if fault else {})
            )
        await self._respond(progress.status, fault)
        return False

    async def _forward(self, request: Request, progress: ExchangeProgress) -> bool:
        """Forward one request and its response. If a kept connection to the real host breaks before it answers, a GET
        or HEAD without a body is sent once more. Return whether another request may follow."""
        kept = self._upstream_connection is not None
        try:
            return await self._attempt(request, progress)
        except BrokenTransfer:
            if not kept or progress.status or request.method not in ("GET", "HEAD") or not request.framing.empty:
                raise
        # The host may have closed the kept connection just before. It has not answered, so the request can be repeated.
        self._close_upstream()
        return await self._attempt(request, progress)

    async def _attempt(self, request: Request, progress: ExchangeProgress) -> bool:
        """Forward one request and its response. Return whether another request may follow."""
        if "100-continue" in request.options("expect"):
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        reader, writer, by_proxy = await self._connect_upstream()
        writer.write(self._request_head(request, by_proxy))
        upload = asyncio.create_task(self._upload(request.framing, writer, progress))
        answer = asyncio.create_task(self._read_response(reader))
        try:
            await asyncio.wait({upload, answer}, return_when=asyncio.FIRST_COMPLETED)
            if upload.done():
                upload.result()  # Raises if the box left in the middle of its request: nobody waits for the response.
            response = await answer
            if by_proxy and response.status == 407:
                raise proxy_refusal(response.status, self.name)
            framing = response.framing_for(request.method)
            chunked = request.minor == 1 and not framing.empty and framing.length is None
            again = request.keeps_alive and (framing.length is not None or chunked)
            progress.status = response.status
            dropped = _UDP_FIELDS | _PROXY_FIELDS if by_proxy else _UDP_FIELDS
            self.writer.write(_response_head(response, dropped, chunked=chunked, again=again))
            await send_body(self.writer, _counted(pieces(reader, framing), progress), chunked=chunked)
            await flush(self.writer)
            sent_all = upload.done() and upload.result()
        finally:
            await _end(upload, answer)
        if not (sent_all and response.keeps_alive and framing.delimited):
            self._close_upstream()
        return again and sent_all

    async def _connect_upstream(self) -> UpstreamConnection:
        if self._upstream_connection is not None and (
            self._upstream_connection.reader.at_eof() or self._upstream_connection.writer.is_closing()
        ):
            self._close_upstream()
        if self._upstream_connection is None:
            self._upstream_connection = await self.upstream.connect(
                self.name, self.port, tls=self.tls, private=self.policy.private, proxy=self.policy.proxy
            )
        return self._upstream_connection

    def _close_upstream(self) -> None:
        if self._upstream_connection is not None:
            cut(self._upstream_connection.writer)
            self._upstream_connection = None

    def _request_head(self, request: Request, by_proxy: UpstreamProxy | None) -> bytes:
        """Return the head as it is sent on: to the real host, or to the proxy `by_proxy`."""
        host = self.name if self.port == DEFAULT_PORTS[0 if self.tls else 1] else f"{self.name}:{self.port}"

        def is_dropped(field: str) -> bool:
            return field in _HANDLED_HERE or (carries_credentials(field) and not self.policy.credentials)

        framing = request.declared_framing()
        fields = [("Host", host), *request.end_to_end(is_dropped)]
        if framing is not None:
            length = ("Transfer-Encoding", "chunked") if framing.chunked else ("Content-Length", str(framing.length))
            fields.append(length)
        target = request.target
        if by_proxy:
            target = f"http://{host}{target}"
            if by_proxy.login:
                fields.append(("Proxy-Authorization", by_proxy.authorization))
        return write_head(f"{request.method} {target} HTTP/1.1", fields)

    async def _upload(self, framing: Framing, writer: asyncio.StreamWriter, progress: ExchangeProgress) -> bool:
        """Send the request's body on to the real host. Return whether the host took all of it. Raise BrokenTransfer if
        the box sent only part of it."""
        async for piece in pieces(self.reader, framing):
            progress.sent += len(piece)
            writer.writelines((b"%x\r\n" % len(piece), piece, b"\r\n") if framing.chunked else (piece,))
            try:
                await flush(writer)
            except BrokenTransfer:
                return False  # The host may have answered before it stopped reading.
        if framing.chunked:
            writer.write(b"0\r\n\r\n")
        with suppress(BrokenTransfer):
            await flush(writer)
            return True
        return False

    async def _read_response(self, reader: asyncio.StreamReader) -> Response:
        for _ in range(_MOST_INTERIM):
            data = await read_head(reader, idle=ANSWER_SECONDS, patience=HEAD_SECONDS)
            if not data:
                raise BrokenTransfer(f"{self.name} gave no answer")
            response = parse_response(data)
            if response.status == 101:
                raise BadHead(f"{self.name} switched to another protocol")
            if response.status >= 200:
                return response
        raise BadHead(f"{self.name} sent interim answers without end")


def _response_head(response: Response, dropped: set[str], *, chunked: bool, again: bool) -> bytes:
    """Return the response's head as the box gets it, without the fields in `dropped`. `again` tells the box that
    another request may follow. A body without a length or chunks ends with the connection, as in HTTP/1.0."""
    fields: Fields = response.end_to_end(dropped.__contains__)
    framing = response.declared_framing()
    if chunked:
        fields.append(("Transfer-Encoding", "chunked"))
    elif response.status != 204 and framing is not None and framing.length is not None:
        fields.append(("Content-Length", str(framing.length)))
    if not again:
        fields.append(("Connection", "close"))
    return write_head(f"HTTP/1.1 {response.status} {response.reason}", fields)


async def _counted(body: AsyncIterator[bytes], progress: ExchangeProgress) -> AsyncIterator[bytes]:
    """Yield the pieces of a response's body, adding their lengths to `progress.received`."""
    async for piece in body:
        progress.received += len(piece)
        yield piece


async def _end(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
