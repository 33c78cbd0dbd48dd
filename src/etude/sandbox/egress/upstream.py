"""Connections from the proxy to the real hosts: the host's own resolver, verified TLS, and no way back into the host.

A name is resolved once, and the checked address is the one that is connected to, so a name server that answers
differently the second time gains nothing. If the host itself is behind a proxy, that proxy resolves the names and
decides what can be reached; TLS passes through it unread, and real hosts still prove their names.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from etude.sandbox.egress.dialing import (
    LOGIN_WANTED,
    OPEN,
    Place,
    Unreachable,
    ask_for_tunnel,
    dial,
    dial_proxy,
    refused_by_proxy,
    resolve,
)
from etude.sandbox.egress.head import MAX_HEAD
from etude.sandbox.proxies import Proxies, UpstreamProxy

CONNECT_SECONDS = 15.0
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Way(NamedTuple):
    """An open connection on which a real host can be asked."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    by_proxy: UpstreamProxy | None = None
    """The other end is this proxy, and expects proxy requests. None: the real host, possibly through a tunnel."""


@dataclass
class Upstream:
    overrides: Mapping[tuple[str, int], Place] = field(default_factory=dict)
    """(name, port) -> (address, port) to connect to instead, directly and unchecked: a mirror, a test's servers."""
    trust: ssl.SSLContext | None = None
    """The authorities that must certify real hosts; by default those that the host trusts."""

    @cached_property
    def proxies(self) -> Proxies:
        """This host's own proxies; RequestRefused if its variables cannot be parsed."""
        return Proxies.of_host()

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = self.trust or ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def connect(
        self, name: str, port: int, *, tls: bool, private: bool, proxy: UpstreamProxy | None = None
    ) -> Way:
        """Connects to a real host through `proxy`, the policy's own, or else as this host's proxies say."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connect(name, port, tls=tls, private=private, proxy=proxy)
        except TimeoutError:
            raise Unreachable(f"{name}:{port} did not answer in {CONNECT_SECONDS:.0f} s") from None

    async def _connect(self, name: str, port: int, *, tls: bool, private: bool, proxy: UpstreamProxy | None) -> Way:
        try:
            connection, asked = await self._dial(name, port, tls=tls, private=private, proxy=proxy)
            reader, writer = await asyncio.open_connection(
                sock=connection,
                ssl=self._context if tls else None,
                server_hostname=name if tls else None,
                limit=MAX_HEAD,
            )
        except ssl.SSLError as error:
            raise Unreachable(f"{name}:{port}: TLS failed: {error.reason or error}") from error
        except OSError as error:
            raise Unreachable(f"{name}:{port}: {error}") from error
        return Way(reader, writer, asked)

    async def _dial(
        self, name: str, port: int, *, tls: bool, private: bool, proxy: UpstreamProxy | None
    ) -> tuple[socket.socket, UpstreamProxy | None]:
        """A connection to the real host, or to a proxy, which is then returned too."""
        if override := self.overrides.get((name, port)):
            return await dial([override]), None
        if proxy := proxy or await self._proxy_for(name, port, tls=tls):
            return await _dial_by(proxy, f"{name}:{port}", tls=tls)
        return await dial(await self._places(name, port, private=private)), None

    async def _proxy_for(self, name: str, port: int, *, tls: bool) -> UpstreamProxy | None:
        proxy = self.proxies.way_to(name, port, tls=tls)
        if proxy is None or not self.proxies.exceptions.networks:
            return proxy
        try:
            places = await _resolve(name, port)
        except Unreachable:  # Behind a proxy, only the proxy may be able to resolve outside names.
            return proxy
        return self.proxies.way_to(name, port, tls=tls, addresses=[address for address, _ in places])

    async def _places(self, name: str, port: int, *, private: bool) -> list[Place]:
        places = await _resolve(name, port)
        open_to_boxes = [place for place in places if may_reach(place[0], private=private)]
        if not open_to_boxes:
            there = ", ".join(address for address, _ in places)
            raise Unreachable(f"{name} leads to {there}, which this policy keeps from boxes")
        return open_to_boxes


async def _dial_by(proxy: UpstreamProxy, place: str, *, tls: bool) -> tuple[socket.socket, UpstreamProxy | None]:
    """A tunnel through the proxy. If the proxy offers tunnels for TLS only, a connection to the proxy itself."""
    connection = await dial_proxy(proxy)
    try:
        status = await ask_for_tunnel(connection, proxy, place)
        if status == OPEN:
            return connection, None
        if tls or status in LOGIN_WANTED or status >= 500:
            raise refused_by_proxy(status, place)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return await dial_proxy(proxy), proxy


async def _resolve(name: str, port: int) -> list[Place]:
    try:
        # The trailing dot keeps the host's search domains out.
        return await resolve(f"{name}." if "." in name else name, port)
    except OSError as error:
        raise Unreachable(f"{name} has no address: {error}") from error


def may_reach(text: str, *, private: bool) -> bool:
    """Whether boxes may reach this address: public ones; with `private` also the host's own and those of its networks.
    Never link-local ones, at which clouds hand out credentials."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        address = inner or address
    nobodys = isinstance(address, ipaddress.IPv4Address) and address.is_reserved  # Includes broadcast.
    if address.is_multicast or address.is_link_local or address.is_unspecified or nobodys:
        return False
    return address.is_global or (private and (address.is_private or address.is_loopback))
