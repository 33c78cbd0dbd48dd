"""The way to real hosts: never back into the host or its networks, and only to who can prove its name."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from tests.contract.sandbox.support import in_loop

from etude.sandbox.egress import upstream
from etude.sandbox.egress.authority import Authority
from etude.sandbox.egress.upstream import Unreachable, Upstream, may_reach

PRIVATE = [
    *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1"),
    *("::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::"),
]
NEVER = [
    *("169.254.169.254", "224.0.0.1", "0.0.0.0", "255.255.255.255", "240.0.0.1"),
    *("fe80::1", "fe80::1%eth0", "ff02::1", "::", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"),
]


@pytest.mark.parametrize("address", [*PRIVATE, *NEVER])
def test_kept_from_boxes(address: str) -> None:
    assert not may_reach(address, private=False)


@pytest.mark.parametrize("address", NEVER)
def test_kept_from_boxes_whatever_the_policy(address: str) -> None:
    assert not may_reach(address, private=True)


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "192.168.1.1", "::1", "fd00::1", "::ffff:10.0.0.1"])
def test_open_to_boxes_where_the_policy_says_so(address: str) -> None:
    assert may_reach(address, private=True)


@pytest.mark.parametrize("address", ["1.1.1.1", "151.101.0.223", "2606:4700::1111", "64:ff9b::101:101"])
def test_public(address: str) -> None:
    assert may_reach(address, private=False)


@in_loop
async def test_a_name_that_leads_home_is_refused() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"inner secret")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match=r"localhost leads to .*127\.0\.0\.1"):
            await Upstream().connect("localhost", port, tls=False, private=False)
        reader, writer = await Upstream().connect("localhost", port, tls=False, private=True)
        assert await reader.read() == b"inner secret"
        writer.close()


@in_loop
async def test_a_host_must_prove_its_name() -> None:
    authority, other = Authority(), Authority()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.context_for("index.example")) as server:
        there = {(name, 443): ("127.0.0.1", server.sockets[0].getsockname()[1]) for name in ("index.example", "a.org")}
        trusting = Upstream(there, ssl.create_default_context(cadata=authority.pem.decode()))
        _, writer = await trusting.connect("index.example", 443, tls=True, private=False)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
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
