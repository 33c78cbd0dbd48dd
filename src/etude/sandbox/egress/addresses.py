"""Decides which IP addresses boxes may reach.

Invariant: an address is allowed only if it is known to be public (global unicast), or known to be private and the
policy allows that. Everything else is refused. An IPv6 address that embeds an IPv4 address is judged by both, since
either may decide where its packets go.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

# IANA's registries of special-purpose addresses. Python's own properties (is_global, is_private) differ between
# versions and call addresses global that are in no table of theirs.
_NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/3"),
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_PRIVATE_4 = tuple(map(IPv4Network, ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_PRIVATE_6 = IPv6Network("fc00::/7")
_LOOPBACK_6 = IPv6Address("::1")
_CLOUD = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "fd00:ec2::/32", "fd20:ce::/32")))
"""Where clouds serve credentials, besides link-local addresses: Azure, AWS and Google."""
_IPV4_IN_IPV6 = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""Prefixes of IPv6 addresses that only stand for an IPv4 address: compatible, mapped, translated, and NAT64. Such an
address is judged by its IPv4 address alone."""
_6TO4 = IPv6Network("2002::/16")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
"""What precedes the IPv4 address in the second half of an address of the ISATAP tunnels."""


def may_reach(text: str, *, private: bool) -> bool:
    """Whether boxes may reach this IP address. Public addresses are allowed; with `private`, also those of this host
    and its networks. Addresses where clouds serve credentials are never allowed."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, IPv4Address):
        return _may_reach_4(address, private)
    if address == _LOOPBACK_6:
        return private
    if any(address in network for network in _IPV4_IN_IPV6):
        return _may_reach_4(IPv4Address(address.packed[12:]), private)
    return _may_reach_6(address, private) and all(_may_reach_4(inner, private) for inner in _tunnelled_to(address))


def _may_reach_4(address: IPv4Address, private: bool) -> bool:
    if any(address in network for network in _CLOUD):
        return False
    if not any(address in network for network in _NOT_PUBLIC_4):
        return True
    return private and any(address in network for network in _PRIVATE_4)


def _may_reach_6(address: IPv6Address, private: bool) -> bool:
    if any(address in network for network in _CLOUD):
        return False
    if address in _PUBLIC_6:
        return not any(address in network for network in _NOT_PUBLIC_6)
    return private and address in _PRIVATE_6


def _tunnelled_to(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses to which a tunnel (6to4, ISATAP) might send packets for an IPv6 address."""
    packed = address.packed
    if address in _6TO4:
        yield IPv4Address(packed[2:6])
    if packed[8:12] in _ISATAP:
        yield IPv4Address(packed[12:])
