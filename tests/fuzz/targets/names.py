"""Names that a box asks for: queries to its name server, and the server name in a TLS handshake."""

from __future__ import annotations

import contextlib
import ssl
import struct
import sys
from functools import cache
from ipaddress import IPv6Network, ip_address

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of

from etude.sandbox.contract import Egress
from etude.sandbox.egress.addresses import may_reach
from etude.sandbox.egress.authority import Authority, NamedConnection
from etude.sandbox.egress.name_server import NameServer
from etude.sandbox.egress.policy import Policy, host_name

_NAME = "index.example"


@cache
def _policy() -> Policy:
    return Policy(Egress("x", ("index.example", "*.packages.example")))


def _run_query(data: bytes) -> str:
    server = NameServer(_policy(), ipv6=True)
    answer, name, why = server.answer(data)
    assert len(answer) <= len(data) + 64
    if answer:
        assert answer[:2] == data[:2]
        assert answer[2] & 0x80
    records = int.from_bytes(answer[6:8]) if len(answer) >= 8 else 0
    assert not records or not why
    for known in server._numbers:
        assert _policy().allows(known), "a name that the policy does not allow has an address"
    return f"{why[:20]} {records} {bool(name)}"


@st.composite
def _queries(draw: st.DrawFn) -> bytes:
    labels = draw(
        st.lists(
            st.sampled_from([b"index", b"example", b"a", b"packages", b"INDEX", b"a.b", b"\xff", b"-", b"x" * 63])
            | st.binary(max_size=8),
            max_size=5,
        )
        | st.just([b"index", b"example"])
    )
    name = b"".join(bytes([len(label)]) + label for label in labels) + draw(
        st.sampled_from([b"\0", b"\0", b"\xc0\x0c", b"", b"\x40"])
    )
    counts = draw(
        st.tuples(
            *(st.sampled_from([1, 1, 0, 2, 65535]) for _ in range(1)), *(st.sampled_from([0, 0, 1]) for _ in range(3))
        )
    )
    flags = draw(st.sampled_from([0x0100, 0x0100, 0x8180, 0x2800, 0xFFFF]))
    kind, group = draw(st.sampled_from([(1, 1), (28, 1), (255, 1), (16, 1), (1, 3)]))
    return struct.pack("!HHHHHH", draw(st.integers(0, 65535)), flags, *counts) + name + struct.pack("!HH", kind, group)


@cache
def _context() -> ssl.SSLContext:
    return Authority().context_for(_NAME)


def _run_handshake(data: bytes) -> str:
    """What a box sends at the start of a TLS connection. The server name that is taken from it decides what the proxy
    does, so whatever else it is, it must be a name of the policy or refused."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = _context().wrap_bio(incoming, outgoing, server_side=True)
    assert isinstance(connection, NamedConnection)
    incoming.write(data)
    incoming.write_eof()
    outcome, hook = "handshake", sys.unraisablehook
    sys.unraisablehook = lambda _: None  # Python's own ssl says there that a name is not ASCII.
    try:
        connection.do_handshake()
    except ssl.SSLError as error:
        outcome = f"{type(error).__name__} {error.reason}"
    finally:
        sys.unraisablehook = hook
    name = connection.server_name
    assert name is None or isinstance(name, str)
    if name is not None and host_name(name) == _NAME:
        outcome += " for the name"
    assert len(outgoing.read()) < 1 << 16
    return outcome


def _hello(name: bytes, kind: int, lies: tuple[int, int, int]) -> bytes:
    entry = bytes([kind]) + struct.pack("!H", max(0, len(name) + lies[0])) + name
    listed = struct.pack("!H", max(0, len(entry) + lies[1])) + entry
    extensions = struct.pack("!HH", 0, max(0, len(listed) + lies[2])) + listed
    extensions += struct.pack("!HHHH", 10, 4, 2, 23) + struct.pack("!HHHHH", 13, 6, 4, 0x0403, 0x0804)
    body = b"\x03\x03" + bytes(32) + b"\0" + struct.pack("!HHH", 4, 0xC02B, 0x1301) + b"\1\0"
    body += struct.pack("!H", len(extensions)) + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack("!H", len(message)) + message


def _real_hello(name: str) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


_LIES = st.sampled_from([0, 0, 0, 0, -1, 1, 200])
_HELLOS = st.builds(
    _hello,
    st.sampled_from(
        [
            b"index.example",
            b"INDEX.example.",
            b"other.example",
            b"",
            b"\xff\xfe",
            b"a\0b",
            b"index.example\0.evil",
            b"1.2.3.4",
        ]
    )
    | st.binary(max_size=300),
    st.sampled_from([0, 0, 0, 1, 255]),
    st.tuples(_LIES, _LIES, _LIES),
)


_NEVER_PUBLIC = IPv6Network("fc00::/6")
"""Unique local, link-local, site-local and multicast addresses."""


def _run_address(data: bytes) -> str:
    text = data.decode("latin-1")
    try:
        public, private = may_reach(text, private=False), may_reach(text, private=True)
    except ValueError as error:
        return kind_of(error)
    assert private or not public, "a policy that allows more allows less"
    address = ip_address(text.partition("%")[0])
    inward = address.is_loopback or address.is_link_local or address.is_multicast or address in _NEVER_PUBLIC
    assert not (public and inward), "an address of the host or its network counts as public"
    return f"{public} {private}"


_ADDRESSES = st.ip_addresses().map(str) | st.builds(
    lambda prefix, inner: prefix + str(inner),
    st.sampled_from(["::", "::ffff:", "::ffff:0:", "64:ff9b::", "64:ff9b:1::", "2002::"])
    | st.builds("{}::{}5efe:".format, st.sampled_from(["fe80", "fd00", "ff02", "2600"]), st.sampled_from(["", "200:"])),
    st.ip_addresses(v=4),
)

TARGETS = (
    Target(
        "dns",
        _run_query,
        _queries(),
        ("etude.sandbox.egress",),
        lambda: [b"\0\1\1\0\0\1\0\0\0\0\0\0\5index\7example\0\0\1\0\1"],
    ),
    Target(
        "tls",
        _run_handshake,
        _HELLOS,
        ("etude.sandbox.egress",),
        lambda: [_real_hello(_NAME), _real_hello("other.example")],
        largest=1 << 14,
    ),
    Target(
        "address",
        _run_address,
        _ADDRESSES.map(str.encode),
        ("etude.sandbox.egress.addresses",),
        lambda: [b"1.1.1.1", b"::1%eth0"],
        largest=200,
    ),
)
