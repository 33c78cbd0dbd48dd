"""Opens TCP connections: to the first of several addresses that answers, and to hosts behind an HTTP proxy."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

from etude.sandbox.egress.http_head import MAX_HEAD, BadHead, parse_response
from etude.sandbox.proxies import UpstreamProxy

HEAD_START_SECONDS = 0.25
"""Seconds before the next address is tried as well: one IP family may lead nowhere without an error."""
TUNNEL_OPEN, LOGIN_WANTED = 200, (401, 407)
"""HTTP statuses of a proxy's response to CONNECT: the tunnel is open, or the proxy wants a login."""
HostPort = tuple[str, int]
"""(address, port) to connect to."""


class Unreachable(Exception):
    """No connection to the real host can be made. The message says why."""


async def dial(addresses: Sequence[HostPort]) -> socket.socket:
    """Return a connection to the first address that answers. The next address is tried when one fails, or after
    HEAD_START_SECONDS while the earlier ones are still being tried. Raise OSError if none answers."""
    waiting = list(addresses)
    dialing: set[asyncio.Task[socket.socket]] = set()
    failure = OSError("no address")
    try:
        while waiting or dialing:
            if waiting:
                dialing.add(asyncio.create_task(_connect(waiting.pop(0))))
            wait = HEAD_START_SECONDS if waiting else None
            done, dialing = await asyncio.wait(dialing, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    dialing |= done - {task}
                    return task.result()
                failure = error if isinstance(error, OSError) else OSError(str(error))
        raise failure
    finally:
        await _cancel(dialing)


async def dial_proxy(proxy: UpstreamProxy) -> socket.socket:
    """Return a connection to a proxy. Error messages omit the proxy's address, since a box may get to see them."""
    try:
        return await dial(await resolve(proxy.host, proxy.port))
    except OSError as error:
        raise Unreachable(f"the upstream proxy cannot be reached: {_reason(error)}") from error


async def request_tunnel(connection: socket.socket, proxy: UpstreamProxy, place: str) -> int:
    """Ask the proxy at the other end of `connection` for a tunnel to `place` ("name:port"); return the HTTP status of
    its response. If the status is TUNNEL_OPEN, the connection now leads to `place`."""
    login = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.login else ""
    loop = asyncio.get_running_loop()
    answer = b""
    try:
        await loop.sock_sendall(connection, f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n".encode())
        while b"\r\n\r\n" not in answer and len(answer) <= MAX_HEAD:
            piece = await loop.sock_recv(connection, 4096)
            if not piece:
                raise Unreachable("the upstream proxy closed the connection without an answer")
            answer += piece
    except OSError as error:
        raise Unreachable(f"the upstream proxy broke the connection: {_reason(error)}") from error
    head, end, more = answer.partition(b"\r\n\r\n")
    try:
        status = parse_response(head + end).status
    except BadHead as error:
        raise Unreachable("the upstream proxy does not answer in HTTP/1.1") from error
    if status == TUNNEL_OPEN and more:  # The host can have sent nothing, since it was sent nothing.
        raise Unreachable("the upstream proxy sent more than its response")
    return status


def proxy_refusal(status: int, place: str) -> Unreachable:
    if status in LOGIN_WANTED:
        return Unreachable(f"the upstream proxy wants a login, or another one (HTTP {status})")
    if status >= 500:
        return Unreachable(f"the upstream proxy cannot reach {place} (HTTP {status})")
    return Unreachable(f"the upstream proxy refuses connections to {place} (HTTP {status})")


async def resolve(name: str, port: int) -> list[HostPort]:
    """Return the addresses of a name, in the order of the host's resolver. Raise OSError for an unknown name."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(entry[4][0]), port) for entry in found))


async def _connect(place: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, place)
    except BaseException:
        connection.close()
        raise
    return connection


async def _cancel(tasks: set[asyncio.Task[socket.socket]]) -> None:
    """Cancel the tasks, and close connections that they have already made."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, socket.socket):
            found.close()


def _reason(error: OSError) -> str:
    """Return why a connection failed, without naming the address."""
    if isinstance(error, socket.gaierror):
        return "its name has no address"
    return os.strerror(error.errno) if error.errno else str(error)
