"""The name server of a box. It answers all queries itself, so no DNS query of a box ever leaves the host.

An allowed name gets an address of its own in each family (IPv4, IPv6). These addresses mean nothing outside the box;
when the box connects to one, the proxy looks up its name. All other names do not exist. An allowed name has both
addresses even if the real host has only one; which family is really used is decided when a request is forwarded.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from etude.sandbox.egress.policy import Policy, host_name

MOST_NAMES = 4096
"""Maximum number of names with addresses in one box, since a policy with a wildcard allows any number of names."""
# Blocks for the addresses of allowed names. They are reserved for network tests, so no real host has one.
_BLOCKS = (ipaddress.IPv4Network("198.18.0.0/15"), ipaddress.IPv6Network("2001:2::/48"))
_HEAD = struct.Struct("!HHHHHH")
_KINDS, _ANY_KIND, _INTERNET = (1, 28), 255, 1
"""DNS numbers: record types A and AAAA (in the order of _BLOCKS), any type, and class IN."""
_ANSWER, _AUTHORITY, _RECURSION_WANTED, _RECURSION = 0x8000, 0x0400, 0x0100, 0x0080
_FORMAT_ERROR, _FAILED, _NO_SUCH_NAME, _UNKNOWN_OPERATION = 1, 2, 3, 4
_SECONDS_TO_KEEP = 60
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadQuery(ValueError):
    """The bytes are not a DNS query that a resolver would send."""


@dataclass(frozen=True, slots=True)
class Query:
    ticket: int
    """The query's id, which the response repeats."""
    flags: int
    name: str
    """The host name that the query asks about, in the spelling of the query."""
    kind: int
    """The record type that the query asks for."""
    question: bytes
    """The raw bytes of the question, to be repeated in the response."""


def parse_query(data: bytes) -> Query:
    """Parse a DNS message. Raise BadQuery unless it is a query with one question."""
    if len(data) < _HEAD.size:
        raise BadQuery("shorter than a head")
    ticket, flags, questions, answers, _, _ = _HEAD.unpack_from(data)
    if flags & _ANSWER or questions != 1 or answers:
        raise BadQuery("not one question")
    labels, at = [], _HEAD.size
    while True:
        length = data[at] if at < len(data) else 64
        if length > 63:  # A compressed name, which resolvers do not use in questions, or the end of the data.
            raise BadQuery("a torn or compressed name")
        at += 1
        if length == 0:
            break
        labels.append(data[at : at + length])
        at += length
    if at + 4 > len(data) or at - _HEAD.size > 255:
        raise BadQuery("a torn question")
    kind, group = struct.unpack_from("!HH", data, at)
    if group != _INTERNET:
        raise BadQuery("not of the internet's class")
    # A dot inside a label must not be mistaken for a separator of labels.
    if any(b"." in label for label in labels):
        raise BadQuery("a dot within a label")
    name = b".".join(labels).decode("latin-1")
    return Query(ticket, flags, name, kind, data[_HEAD.size : at + 4])


def build_answer(query: Query, *, addresses: Sequence[Address] = (), code: int = 0) -> bytes:
    """Build the response with those of the name's `addresses` that are of the record type asked for."""
    records = [
        struct.pack("!HHHIH", 0xC000 | _HEAD.size, kind, _INTERNET, _SECONDS_TO_KEEP, len(address.packed))
        + address.packed
        for kind, address in zip(_KINDS, addresses, strict=False)
        if query.kind in (kind, _ANY_KIND)
    ]
    flags = _ANSWER | _AUTHORITY | _RECURSION | query.flags & (0x7800 | _RECURSION_WANTED) | code
    head = _HEAD.pack(query.ticket, flags, 1, len(records), 0, 0)
    return b"".join([head, query.question, *records])


class NameServer:
    def __init__(self, policy: Policy, *, ipv6: bool) -> None:
        self.policy = policy
        self._blocks = _BLOCKS if ipv6 else _BLOCKS[:1]
        self._numbers: dict[str, int] = {}
        self._names: dict[Address, str] = {}

    def name_of(self, address: str) -> str | None:
        """Return the name that was given this address, or None. An IPv4 address may be written in IPv6 form."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return None
        return self._names.get(getattr(found, "ipv4_mapped", None) or found)

    def addresses_of(self, name: str) -> list[Address]:
        """Return the addresses of an allowed name. A new name is given addresses now, or [] if MOST_NAMES names have
        some already."""
        if name not in self._numbers:
            if len(self._numbers) >= MOST_NAMES:
                return []
            self._numbers[name] = len(self._numbers) + 1
            self._names |= {block[self._numbers[name]]: name for block in self._blocks}
        return [block[self._numbers[name]] for block in self._blocks]

    def answer(self, data: bytes) -> tuple[bytes, str, str]:
        """Answer a DNS query. Return (response, refused name, reason). Name and reason are empty if nothing was
        refused. The response is empty if the data is no query, and the name is empty if it cannot be read."""
        try:
            query = parse_query(data)
        except BadQuery as error:
            refused = data[:2] + struct.pack("!HHHHH", _ANSWER | _FORMAT_ERROR, 0, 0, 0, 0)
            is_query = len(data) >= _HEAD.size and not data[2] & 0x80
            return (refused if is_query else b""), "", f"a damaged question: {error}"
        if query.flags & 0x7800:
            return build_answer(query, code=_UNKNOWN_OPERATION), query.name, "an operation that is no question"
        name = host_name(query.name)
        if name is None or not self.policy.allows(name):
            return build_answer(query, code=_NO_SUCH_NAME), query.name, "no pattern of the policy covers this name"
        addresses = self.addresses_of(name)
        if not addresses:
            return build_answer(query, code=_FAILED), name, f"more than {MOST_NAMES} names in one box"
        return build_answer(query, addresses=addresses), "", ""
