"""The name server of a box. It answers by itself and asks nobody, so no query of a box ever leaves the host.

An allowed name gets its own address in each family. These addresses mean nothing outside the box: they later tell the
proxy which name a connection is for. All other names do not exist. An allowed name has both addresses whatever the real
host has; which of the real ones is used is decided when a request passes.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from etude.sandbox.egress.policy import Policy, host_name

MOST_NAMES = 4096
"""Most names with addresses in one box, since a policy with a wildcard allows an unlimited number."""
# Reserved for network tests, so never a real host's.
_BLOCKS = (ipaddress.IPv4Network("198.18.0.0/15"), ipaddress.IPv6Network("2001:2::/48"))
_HEAD = struct.Struct("!HHHHHH")
_KINDS, _ANY_KIND, _INTERNET = (1, 28), 255, 1
"""A and AAAA, in the order of the blocks."""
_ANSWER, _AUTHORITY, _RECURSION_WANTED, _RECURSION = 0x8000, 0x0400, 0x0100, 0x0080
_FORMAT_ERROR, _FAILED, _NO_SUCH_NAME, _UNKNOWN_OPERATION = 1, 2, 3, 4
_SECONDS_TO_KEEP = 60
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadQuery(ValueError):
    """Not a query that a resolver would send."""


@dataclass(frozen=True, slots=True)
class Query:
    ticket: int
    flags: int
    name: str
    """The name as it was asked."""
    kind: int
    question: bytes
    """The raw bytes of the question, to be sent back."""


def parse_query(data: bytes) -> Query:
    if len(data) < _HEAD.size:
        raise BadQuery("shorter than a head")
    ticket, flags, questions, answers, _, _ = _HEAD.unpack_from(data)
    if flags & _ANSWER or questions != 1 or answers:
        raise BadQuery("not one question")
    labels, at = [], _HEAD.size
    while True:
        length = data[at] if at < len(data) else 64
        if length > 63:  # Compressed names are not used in questions.
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
    # A dot inside a label must not pass for a separator.
    if any(b"." in label for label in labels):
        raise BadQuery("a dot within a label")
    name = b".".join(labels).decode("latin-1")
    return Query(ticket, flags, name, kind, data[_HEAD.size : at + 4])


def build_answer(query: Query, *, addresses: Sequence[Address] = (), code: int = 0) -> bytes:
    """Builds the response, with those of the name's addresses that are of the kind asked for."""
    records = [
        struct.pack("!HHHIH", 0xC000 | _HEAD.size, kind, _INTERNET, _SECONDS_TO_KEEP, len(address.packed))
        + address.packed
        for kind, address in zip(_KINDS, addresses, strict=False)
        if query.kind in (kind, _ANY_KIND)
    ]
    flags = _ANSWER | _AUTHORITY | _RECURSION | query.flags & (0x7800 | _RECURSION_WANTED) | code
    head = _HEAD.pack(query.ticket, flags, 1, len(records), 0, 0)
    return b"".join([head, query.question, *records])


class Names:
    """The names that a box has asked for, with their addresses."""

    def __init__(self, policy: Policy, *, ipv6: bool) -> None:
        self.policy = policy
        self._blocks = _BLOCKS if ipv6 else _BLOCKS[:1]
        self._numbers: dict[str, int] = {}
        self._names: dict[Address, str] = {}

    def name_of(self, address: str) -> str | None:
        """The name with this address; an IPv4 address may be written as an IPv6 one."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return None
        return self._names.get(getattr(found, "ipv4_mapped", None) or found)

    def addresses_of(self, name: str) -> list[Address]:
        """Addresses of an allowed name in normal form; none if the box has asked for too many names."""
        if name not in self._numbers:
            if len(self._numbers) >= MOST_NAMES:
                return []
            self._numbers[name] = len(self._numbers) + 1
            self._names |= {block[self._numbers[name]]: name for block in self._blocks}
        return [block[self._numbers[name]] for block in self._blocks]

    def answer(self, data: bytes) -> tuple[bytes, str, str]:
        """The bytes to send back (none if it was no query) and, if the name was refused, it and the reason."""
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
