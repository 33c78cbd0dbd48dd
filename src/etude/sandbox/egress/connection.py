"""One HTTP/1.1 connection of a box: its requests are checked, passed on and logged, one after another.

The host name is fixed before the first byte: it is the one whose address the box connected to. What a request says
itself (TLS server name, Host) can only agree with it or be refused, so no name can stand for another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from etude.sandbox.egress.body import PIECE, Torn, close, cut, flush, pieces, read_head, send_body
from etude.sandbox.egress.credentials import tells_who_asks
from etude.sandbox.egress.dialing import Unreachable, refused_by_proxy
from etude.sandbox.egress.head import (
    BadHead,
    Fields,
    Framing,
    Request,
    Response,
    parse_request,
    parse_response,
    write_head,
)
from etude.sandbox.egress.log import BoxLog
from etude.sandbox.egress.policy import DEFAULT_PORTS, Policy, host_name
from etude.sandbox.egress.upstream import Upstream, Way
from etude.sandbox.proxies import UpstreamProxy

HEAD_SECONDS, IDLE_SECONDS, ANSWER_SECONDS = 15.0, 60.0, 120.0
_LINGER_BYTES = 1 << 20
_MOST_INTERIM = 10
_ANSWERED_HERE = {"expect", "max-forwards"}
_OTHER_WAYS = {"alt-svc"}
"""Response fields by which a host offers itself over UDP."""
_OF_PROXIES = {"via", "x-cache", "x-cache-lookup", "x-squid-error"}
"""Response fields in which a proxy names itself."""


@dataclass
class Tally:
    """Progress of one exchange."""

    sent: int = 0
    received: int = 0
    status: int = 0
    """Status of the response that the box was given; 0 before that."""


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: str
    port: int
    tls: bool
    asked: str | None
    """The server name of the TLS handshake."""
    policy: Policy
    upstream: Upstream
    log: BoxLog
    _real: Way | None = field(default=None, init=False)

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                pass
            await close(self.writer)
        except (Torn, ConnectionError):
            pass  # It is in the log. The box sees a broken connection, which is what happened.
        finally:
            cut(self.writer)
            self._leave_real_host()

    async def _serve_one(self) -> bool:
        """Serves one request; returns whether another may follow."""
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
        if self.tls and host_name(self.asked or "") != self.name:
            raise BadHead(f"a TLS handshake for {self.asked or 'no name'} on a connection to {self.name}", 421)
        host, _, port = request.host.partition(":")
        if host_name(host) != self.name or port not in ("", str(self.port)):
            raise BadHead(f"a request for host {request.host!r} on a connection to {self.name}:{self.port}", 421)
        upgrades = request.options("upgrade") - {"h2c"}
        if upgrades:
            raise BadHead(f"an upgrade to {', '.join(sorted(upgrades))}; only HTTP/1.1 passes", 501)

    async def _refuse(self, status: int, reason: str, request: Request | None) -> None:
        self.log.refused(reason, **self._told(request), status=status)
        await self._say(status, reason)

    async def _say(self, status: int, reason: str) -> None:
        body = f"egress: {reason}\n".encode()
        fields = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        head = write_head(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", [*fields, ("Connection", "close")])
        self.writer.write(head + body)
        await flush(self.writer)
        if self.writer.can_write_eof():
            self.writer.write_eof()
        # Closing while unread bytes are waiting would take the response away from the box.
        left = _LINGER_BYTES
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                while left > 0 and (piece := await self.reader.read(PIECE)):
                    left -= len(piece)

    def _told(self, request: Request | None) -> dict[str, object]:
        told: dict[str, object] = {"scheme": "https" if self.tls else "http", "host": self.name, "port": self.port}
        if request is None:
            return told
        return {
            **told,
            "method": request.method,
            "path": request.path,
            "query": len(request.target) - len(request.path),
        }

    # -- one request

    async def _exchange(self, request: Request) -> bool:
        began, tally, fault = time.monotonic(), Tally(), "the box ended"
        try:
            again = await self._pass_on(request, tally)
            fault = ""
            return again
        except (Unreachable, BadHead, Torn) as error:
            fault = str(error)
            if tally.status:  # Too late for an error response: what has begun as a complete response must break.
                raise Torn(fault) from error
            tally.status = 504 if isinstance(error, Torn) else 502
        finally:
            spent = round((time.monotonic() - began) * 1000, 1)
            moved = {"sent": tally.sent, "received": tally.received, "ms": spent}
            self.log.passed(**self._told(request), status=tally.status, **moved, **({"fault": fault} if fault else {}))
        await self._say(tally.status, fault)
        return False

    async def _pass_on(self, request: Request, tally: Tally) -> bool:
        kept = self._real is not None
        try:
            return await self._attempt(request, tally)
        except Torn:
            if not kept or tally.status or request.method not in ("GET", "HEAD") or not request.framing.empty:
                raise
        # A host may close a connection just when it is used again. It has not answered, so the request can be repeated.
        self._leave_real_host()
        return await self._attempt(request, tally)

    async def _attempt(self, request: Request, tally: Tally) -> bool:
        if "100-continue" in request.options("expect"):
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        reader, writer, by_proxy = await self._real_host()
        writer.write(self._request_head(request, by_proxy))
        upload = asyncio.create_task(self._upload(request.framing, writer, tally))
        answer = asyncio.create_task(self._answer(reader))
        try:
            await asyncio.wait({upload, answer}, return_when=asyncio.FIRST_COMPLETED)
            if upload.done():
                upload.result()  # The box left in the middle of its request, so nobody waits for the response.
            response = await answer
            if by_proxy and response.status == 407:
                raise refused_by_proxy(response.status, self.name)
            framing = response.framing_for(request.method)
            chunked = request.minor == 1 and not framing.empty and framing.length is None
            again = request.keeps_alive and (framing.length is not None or chunked)
            tally.status = response.status
            dropped = _OTHER_WAYS | _OF_PROXIES if by_proxy else _OTHER_WAYS
            self.writer.write(_response_head(response, dropped, chunked=chunked, again=again))
            await send_body(self.writer, _counted(pieces(reader, framing), tally), chunked=chunked)
            await flush(self.writer)
            whole = upload.done() and upload.result()
        finally:
            await _end(upload, answer)
        if not (whole and response.keeps_alive and framing.delimited):
            self._leave_real_host()
        return again and whole

    async def _real_host(self) -> Way:
        if self._real is not None and (self._real.reader.at_eof() or self._real.writer.is_closing()):
            self._leave_real_host()
        if self._real is None:
            self._real = await self.upstream.connect(
                self.name, self.port, tls=self.tls, private=self.policy.private, proxy=self.policy.proxy
            )
        return self._real

    def _leave_real_host(self) -> None:
        if self._real is not None:
            cut(self._real.writer)
            self._real = None

    def _request_head(self, request: Request, by_proxy: UpstreamProxy | None) -> bytes:
        host = self.name if self.port == DEFAULT_PORTS[0 if self.tls else 1] else f"{self.name}:{self.port}"

        def stays_here(field: str) -> bool:
            return field in _ANSWERED_HERE or (tells_who_asks(field) and not self.policy.credentials)

        told = request.told_length()
        fields = [("Host", host), *request.end_to_end(stays_here)]
        if told is not None:
            fields.append(("Transfer-Encoding", "chunked") if told.chunked else ("Content-Length", str(told.length)))
        target = request.target
        if by_proxy:
            target = f"http://{host}{target}"
            if by_proxy.login:
                fields.append(("Proxy-Authorization", by_proxy.authorization))
        return write_head(f"{request.method} {target} HTTP/1.1", fields)

    async def _upload(self, framing: Framing, writer: asyncio.StreamWriter, tally: Tally) -> bool:
        """Sends the request body; returns whether the real host took all of it. Torn if the box sent only a part."""
        async for piece in pieces(self.reader, framing):
            tally.sent += len(piece)
            writer.writelines((b"%x\r\n" % len(piece), piece, b"\r\n") if framing.chunked else (piece,))
            try:
                await flush(writer)
            except Torn:
                return False  # The host may have answered before it stopped reading.
        if framing.chunked:
            writer.write(b"0\r\n\r\n")
        with suppress(Torn):
            await flush(writer)
            return True
        return False

    async def _answer(self, reader: asyncio.StreamReader) -> Response:
        for _ in range(_MOST_INTERIM):
            data = await read_head(reader, idle=ANSWER_SECONDS, patience=HEAD_SECONDS)
            if not data:
                raise Torn(f"{self.name} gave no answer")
            response = parse_response(data)
            if response.status == 101:
                raise BadHead(f"{self.name} switched to another protocol")
            if response.status >= 200:
                return response
        raise BadHead(f"{self.name} sent interim answers without end")


def _response_head(response: Response, dropped: set[str], *, chunked: bool, again: bool) -> bytes:
    """The head for the box. Without a length or chunks, the body ends with the connection, as for HTTP/1.0."""
    fields: Fields = response.end_to_end(dropped.__contains__)
    told = response.told_length()
    if chunked:
        fields.append(("Transfer-Encoding", "chunked"))
    elif response.status != 204 and told is not None and told.length is not None:
        fields.append(("Content-Length", str(told.length)))
    if not again:
        fields.append(("Connection", "close"))
    return write_head(f"HTTP/1.1 {response.status} {response.reason}", fields)


async def _counted(body: AsyncIterator[bytes], tally: Tally) -> AsyncIterator[bytes]:
    async for piece in body:
        tally.received += len(piece)
        yield piece


async def _end(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
