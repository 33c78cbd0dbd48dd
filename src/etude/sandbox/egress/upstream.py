"""The way from the proxy to the real hosts: the host's own resolver, verified TLS, and no way back into the host.

A name is resolved once and the address that was checked is the one that is connected to, so a name server that answers
differently the second time gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from etude.sandbox.egress.head import MAX_HEAD

CONNECT_SECONDS = 15.0
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Unreachable(Exception):
    """No connection to the real host; says why."""


@dataclass
class Upstream:
    overrides: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """(name, port) -> (address, port) to go to instead, unchecked: a mirror, or the servers of a test."""
    trust: ssl.SSLContext | None = None
    """Whom real hosts must be certified by; by default whom the host trusts."""

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = self.trust or ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def connect(self, name: str, port: int, *, tls: bool, private: bool) -> Ends:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connect(name, port, tls=tls, private=private)
        except TimeoutError:
            raise Unreachable(f"{name}:{port} did not answer in {CONNECT_SECONDS:.0f} s") from None

    async def _connect(self, name: str, port: int, *, tls: bool, private: bool) -> Ends:
        failure = ""
        for address, real_port in await self._addresses(name, port, private=private):
            try:
                return await asyncio.open_connection(
                    address,
                    real_port,
                    ssl=self._context if tls else None,
                    server_hostname=name if tls else None,
                    limit=MAX_HEAD,
                )
            except ssl.SSLError as error:
                raise Unreachable(f"{name}:{port}: TLS failed: {error.reason or error}") from error
            except OSError as error:
                failure = str(error)
        raise Unreachable(f"{name}:{port}: {failure}")

    async def _addresses(self, name: str, port: int, *, private: bool) -> list[tuple[str, int]]:
        if (name, port) in self.overrides:
            return [self.overrides[name, port]]
        try:
            # The dot at the end keeps the host's search domains out.
            found = await asyncio.get_running_loop().getaddrinfo(
                f"{name}." if "." in name else name, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise Unreachable(f"{name} has no address: {error}") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        open_to_boxes = [address for address in addresses if may_reach(address, private=private)]
        if not open_to_boxes:
            raise Unreachable(f"{name} leads to {', '.join(addresses)}, which this policy keeps from boxes")
        return [(address, port) for address in open_to_boxes]


def may_reach(text: str, *, private: bool) -> bool:
    """Public addresses; with `private` also the host's own and its networks', but never those of one cable, under
    which clouds give away credentials."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        address = inner or address
    nobodys = isinstance(address, ipaddress.IPv4Address) and address.is_reserved  # Broadcast among them.
    if address.is_multicast or address.is_link_local or address.is_unspecified or nobodys:
        return False
    return address.is_global or (private and (address.is_private or address.is_loopback))
