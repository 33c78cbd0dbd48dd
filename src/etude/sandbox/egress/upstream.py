"""Connects the egress proxy to the real hosts, which are those that boxes ask for. It uses this host's own resolver and
verifies TLS. A connection never leads back into this host, unless the policy allows it.

A name is resolved once, and the connection goes to the address that was checked. So a name server that answers
differently the second time gains nothing. If this host itself is behind a proxy, that upstream proxy resolves the names
and decides what can be reached. It passes TLS on unread, and the certificates of the real hosts are still verified.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from etude.sandbox.egress.addresses import may_reach
from etude.sandbox.egress.dialing import (
    LOGIN_WANTED,
    TUNNEL_OPEN,
    HostPort,
    Unreachable,
    dial,
    dial_proxy,
    proxy_refusal,
    request_tunnel,
    resolve,
)
from etude.sandbox.egress.http_head import MAX_HEAD
from etude.sandbox.proxies import Proxies, UpstreamProxy

CONNECT_SECONDS = 15.0


class UpstreamConnection(NamedTuple):
    """An open connection to a real host, or to a proxy that passes requests on to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    by_proxy: UpstreamProxy | None = None
    """The proxy at the other end, which expects whole URLs in request lines. None: the real host, or a tunnel to it."""


@dataclass
class Upstream:
    """Connects the egress proxy to the real hosts that boxes ask for. One object serves all boxes of a backend."""

    overrides: Mapping[tuple[str, int], HostPort] = field(default_factory=dict)
    """(name, port) -> (address, port) to connect to instead, directly and without checks. For mirrors and tests."""
    trust: ssl.SSLContext | None = None
    """TLS context with the authorities by which real hosts are verified; None: those that this host trusts."""

    @cached_property
    def proxies(self) -> Proxies:
        """This host's own proxy settings. Raises RequestRefused if its environment variables cannot be parsed."""
        return Proxies.of_host()

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = self.trust or ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def connect(
        self, name: str, port: int, *, tls: bool, private: bool, proxy: UpstreamProxy | None = None
    ) -> UpstreamConnection:
        """Connect to a real host: through `proxy` (the policy's own) if given, else as this host's proxy settings say.
        `private` allows private addresses. Raise Unreachable if there is no connection."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection, asked = await self._dial(name, port, tls=tls, private=private, proxy=proxy)
                reader, writer = await asyncio.open_connection(
                    sock=connection,
                    ssl=self._context if tls else None,
                    server_hostname=name if tls else None,
                    limit=MAX_HEAD,
                )
        except TimeoutError:
            raise Unreachable(f"{name}:{port} did not answer in {CONNECT_SECONDS:.0f} s") from None
        except ssl.SSLError as error:
            raise Unreachable(f"{name}:{port}: TLS failed: {error.reason or error}") from error
        except OSError as error:
            raise Unreachable(f"{name}:{port}: {error}") from error
        return UpstreamConnection(reader, writer, asked)

    async def _dial(
        self, name: str, port: int, *, tls: bool, private: bool, proxy: UpstreamProxy | None
    ) -> tuple[socket.socket, UpstreamProxy | None]:
        """Return (connection to the real host, None). If a proxy offers no tunnel and so has to pass
        each request on, return (connection to the proxy, the proxy)."""
        if override := self.overrides.get((name, port)):
            return await dial([override]), None
        if proxy := proxy or await self._proxy_for(name, port, tls=tls):
            return await _dial_through(proxy, f"{name}:{port}", tls=tls)
        return await dial(await self._allowed_addresses(name, port, private=private)), None

    async def _proxy_for(self, name: str, port: int, *, tls: bool) -> UpstreamProxy | None:
        """Return the proxy by which this host's own settings reach `name`; None: connect directly."""
        proxy = self.proxies.proxy_for(name, port, tls=tls)
        if proxy is None or not self.proxies.exceptions.networks:
            return proxy
        try:
            addresses = await _resolve(name, port)
        except Unreachable:  # Behind a proxy, only the proxy may be able to resolve outside names.
            return proxy
        return self.proxies.proxy_for(name, port, tls=tls, addresses=[address for address, _ in addresses])

    async def _allowed_addresses(self, name: str, port: int, *, private: bool) -> list[HostPort]:
        """Resolve a name to the addresses that boxes may reach. Raise Unreachable if there are none."""
        addresses = await _resolve(name, port)
        open_to_boxes = [place for place in addresses if may_reach(place[0], private=private)]
        if not open_to_boxes:
            there = ", ".join(address for address, _ in addresses)
            raise Unreachable(f"{name} resolves to {there}, which this policy does not let boxes reach")
        return open_to_boxes


async def _dial_through(proxy: UpstreamProxy, place: str, *, tls: bool) -> tuple[socket.socket, UpstreamProxy | None]:
    """Return (connection through a tunnel of the proxy to the host `place`, None). If the box speaks plain HTTP (not
    `tls`) and the proxy refuses to open a tunnel, return (connection to the proxy, the proxy) instead."""
    connection = await dial_proxy(proxy)
    try:
        status = await request_tunnel(connection, proxy, place)
        if status == TUNNEL_OPEN:
            return connection, None
        if tls or status in LOGIN_WANTED or status >= 500:
            raise proxy_refusal(status, place)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return await dial_proxy(proxy), proxy


async def _resolve(name: str, port: int) -> list[HostPort]:
    """Resolve a name. Raise Unreachable if it has no address."""
    try:
        # With a trailing dot, the resolver does not try the host's search domains.
        return await resolve(f"{name}." if "." in name else name, port)
    except OSError as error:
        raise Unreachable(f"{name} has no address: {error}") from error
