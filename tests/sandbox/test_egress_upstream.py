"""The way to real hosts: never back into the host or its networks, and only to who can prove its name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.contract.sandbox.support import in_loop
from tests.sandbox.upstream_proxy import forget_proxies

from etude.sandbox.egress import upstream
from etude.sandbox.egress.authority import Authority
from etude.sandbox.egress.dialing import Unreachable, dial
from etude.sandbox.egress.upstream import CONNECT_SECONDS, Upstream
from etude.sandbox.inside.network import has_ipv6


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_proxies(monkeypatch)


@in_loop
async def test_a_name_that_leads_home_is_refused() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"inner secret")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match=r"localhost resolves to .*127\.0\.0\.1"):
            await Upstream().connect("localhost", port, tls=False, private=False)
        way = await Upstream().connect("localhost", port, tls=False, private=True)
        assert await way.reader.read() == b"inner secret"
        way.writer.close()


@in_loop
async def test_a_host_must_prove_its_name() -> None:
    authority, other = Authority(), Authority()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.context_for("index.example")) as server:
        there = {(name, 443): ("127.0.0.1", server.sockets[0].getsockname()[1]) for name in ("index.example", "a.org")}
        trusting = Upstream(there, ssl.create_default_context(cadata=authority.pem.decode()))
        way = await trusting.connect("index.example", 443, tls=True, private=False)
        assert way.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        way.writer.close()
        with pytest.raises(Unreachable, match="TLS failed: CERTIFICATE_VERIFY_FAILED"):
            await trusting.connect("a.org", 443, tls=True, private=False)
        for trust in (None, ssl.create_default_context(cadata=other.pem.decode())):
            with pytest.raises(Unreachable, match="TLS failed"):
                await Upstream(there, trust).connect("index.example", 443, tls=True, private=False)


@in_loop
async def test_a_host_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable, match="has no address"):
        await Upstream().connect("nothing.invalid", 443, tls=True, private=False)
    with pytest.raises(Unreachable, match="Errno 111"):
        await Upstream({("a.org", 80): ("127.0.0.1", 1)}).connect("a.org", 80, tls=False, private=False)
    monkeypatch.setattr(upstream, "CONNECT_SECONDS", 0.1)

    async def mute(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    there = {("a.org", 443): ("127.0.0.1", server.sockets[0].getsockname()[1])}
    with pytest.raises(Unreachable, match="did not answer"):
        await Upstream(there).connect("a.org", 443, tls=True, private=False)
    server.close()


# -- several addresses


@contextlib.asynccontextmanager
async def serving(host: str, says: bytes) -> AsyncIterator[tuple[str, int]]:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        writer.close()

    async with await asyncio.start_server(serve, host, 0) as server:
        yield host, server.sockets[0].getsockname()[1]


@contextlib.contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that takes a connection for ever: its queue is full."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener.getsockname()


async def said_by(*places: tuple[str, int]) -> bytes:
    connection = await dial(places)
    with connection:
        return await asyncio.get_running_loop().sock_recv(connection, 99)


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")


@needs_ipv6
@in_loop
async def test_whichever_family_works() -> None:
    async with serving("::1", b"six") as six, serving("127.0.0.1", b"four") as four:
        assert await said_by(six, four) == b"six"
        assert await said_by(("::1", 1), four) == b"four"
        assert await said_by(("127.0.0.1", 1), six) == b"six"
        assert await said_by(("2001:db8::1", four[1]), four) == b"four"
    with pytest.raises(OSError, match="111"):
        await dial([("::1", 1), ("127.0.0.1", 1)])


@needs_ipv6
@in_loop
async def test_an_address_that_says_nothing_keeps_nobody_waiting() -> None:
    began = time.monotonic()
    with black_hole() as mute:
        async with serving("::1", b"six") as six:
            assert await said_by(mute, mute, six) == b"six"
    assert time.monotonic() - began < CONNECT_SECONDS / 2
    assert len(asyncio.all_tasks()) == 1
