"""The name server of a box: answers by itself and asks nobody, so no question of a box ever leaves the host.

An allowed name gets an address of its own, which means nothing outside the box: by it the proxy knows later which name
a connection is for. All other names do not exist.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from etude.sandbox.egress.policy import Policy, host_name

MOST_NAMES = 4096
"""Addresses for one box: a policy with a wildcard allows names without end."""
_FIRST = int(ipaddress.IPv4Address("198.18.0.1"))  # From the block that is set aside for tests, never a real host's.
_HEAD = struct.Struct("!HHHHHH")
_ADDRESS_TYPE, _ANY_TYPE, _INTERNET = 1, 255, 1
_ANSWER, _AUTHORITY, _RECURSION_WANTED, _RECURSION = 0x8000, 0x0400, 0x0100, 0x0080
_FORMAT_ERROR, _FAILED, _NO_SUCH_NAME, _UNKNOWN_OPERATION = 1, 2, 3, 4
_SECONDS_TO_KEEP = 60


class BadQuery(ValueError):
    """Not a question that a resolver would ask."""


@dataclass(frozen=True, slots=True)
class Query:
    ticket: int
    flags: int
    name: str
    """As it was asked."""
    kind: int
    question: bytes
    """The question's own bytes, to be sent back."""


def parse_query(data: bytes) -> Query:
    if len(data) < _HEAD.size:
        raise BadQuery("shorter than a head")
    ticket, flags, questions, answers, _, _ = _HEAD.unpack_from(data)
    if flags & _ANSWER or questions != 1 or answers:
        raise BadQuery("not one question")
    labels, at = [], _HEAD.size
    while True:
        length = data[at] if at < len(data) else 64
        if length > 63:  # Compressed names have no place in a question.
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
    # A dot within a label must not pass for the border of two.
    if any(b"." in label for label in labels):
        raise BadQuery("a dot within a label")
    name = b".".join(labels).decode("latin-1")
    return Query(ticket, flags, name, kind, data[_HEAD.size : at + 4])


def build_answer(query: Query, *, address: str | None = None, code: int = 0) -> bytes:
    wanted = address is not None and query.kind in (_ADDRESS_TYPE, _ANY_TYPE)
    flags = _ANSWER | _AUTHORITY | _RECURSION | query.flags & (0x7800 | _RECURSION_WANTED) | code
    head = _HEAD.pack(query.ticket, flags, 1, int(wanted), 0, 0)
    if not wanted or address is None:
        return head + query.question
    packed = ipaddress.IPv4Address(address).packed
    record = struct.pack("!HHHIH", 0xC000 | _HEAD.size, _ADDRESS_TYPE, _INTERNET, _SECONDS_TO_KEEP, len(packed))
    return head + query.question + record + packed


class Names:
    """The names that a box has asked for and their addresses."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def name_of(self, address: str) -> str | None:
        return self._names.get(address)

    def address_of(self, name: str) -> str | None:
        """Of an allowed name in its one form; None when a box has asked for too many."""
        if name not in self._addresses and len(self._addresses) < MOST_NAMES:
            address = str(ipaddress.IPv4Address(_FIRST + len(self._addresses)))
            self._addresses[name], self._names[address] = address, name
        return self._addresses.get(name)

    def answer(self, data: bytes) -> tuple[bytes, str, str]:
        """The bytes to send back; and where the name was refused, the name and why. No bytes for what is no query."""
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
        address = self.address_of(name)
        if address is None:
            return build_answer(query, code=_FAILED), name, f"more than {MOST_NAMES} names in one box"
        return build_answer(query, address=address), "", ""
