"""A host that reaches the web by a proxy alone: boxes get out through it; neither they nor the log learn its login."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop
from tests.sandbox.egress_internet import Internet, small_internet
from tests.sandbox.egress_scene import Scene, on_stage
from tests.sandbox.egress_stage import NAME, Handler, Stage, staged
from tests.sandbox.upstream_proxy import LOGIN, RealProxy, forget_proxies, needs_tinyproxy, tinyproxy, told_proxy

from etude.sandbox import BoxSpec, Egress, EmbeddedSandboxes, RequestRefused
from etude.sandbox.egress import Upstream, dialing, upstream
from etude.sandbox.egress.dialing import Unreachable
from etude.sandbox.proxies import UpstreamProxy

SECRETS = ("s3cret", base64.b64encode(LOGIN.encode()).decode().rstrip("="), "tinyproxy", "inner")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_proxies(monkeypatch)


# -- boxes, and a real proxy


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Internet, RealProxy]]:
    folder = tmp_path_factory.mktemp("proxied")
    (folder / "internet").mkdir()
    with small_internet(folder / "internet") as internet, tinyproxy(folder / "proxy", "index.example") as proxy:
        yield internet, proxy


@pytest.fixture
def stage(proxied: tuple[Internet, RealProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Its names mean nothing to this host: they are resolved at the proxy, or not at all."""
    internet, proxy = proxied
    monkeypatch.setenv("ALL_PROXY", proxy.variable)
    sandboxes = EmbeddedSandboxes(tmp_path, upstream=Upstream(trust=internet.upstream.trust))
    yield Scene(internet, sandboxes)
    asyncio.run(sandboxes.close())


def policy(internet: Internet, **settings: str) -> Egress:
    return Egress("test", (f"index.example:{internet.secure_port}", f"index.example:{internet.plain_port}"), **settings)


def addresses(internet: Internet) -> str:
    return f"https://index.example:{internet.secure_port}/page http://index.example:{internet.plain_port}/page"


@needs_tinyproxy
@on_stage
async def test_by_the_variables_of_the_host(stage: Scene, proxied: tuple[Internet, RealProxy]) -> None:
    internet, proxy = proxied
    asked = len(proxy.asked)
    box = await stage.box(policy(internet))
    said = await box.exec(f"curl -sSi {addresses(internet)}; env; cat /proc/1/environ /etc/resolv.conf", timeout=20)
    assert said.stdout.count(b"page of index.example") == 2, said
    await stage.settled()
    assert proxy.asked[asked:] == [
        f"CONNECT index.example:{internet.secure_port} HTTP/1.1",
        f"CONNECT index.example:{internet.plain_port} HTTP/1.1",
    ]
    assert [(row["scheme"], row["status"]) for row in stage.rows] == [("https", 200), ("http", 200)]
    for secret in (*SECRETS, str(proxy.port), "roxy"):
        assert secret not in (said.stdout + said.stderr).decode()
        assert secret not in json.dumps(stage.rows)
    for _, _, _, fields in internet.asked:
        assert not [name for name in fields if name.lower().startswith("proxy-")]


@needs_tinyproxy
@on_stage
async def test_a_login_that_the_proxy_does_not_take(stage: Scene, proxied: tuple[Internet, RealProxy]) -> None:
    internet, proxy = proxied
    box = await stage.box(policy(internet, proxy=f"http://me:wr0ng@127.0.0.1:{proxy.port}"))
    said = await box.exec(f"curl -sSi {addresses(internet)}", timeout=20)
    assert said.stdout.count(b"HTTP/1.1 502 Bad Gateway") == 2, said
    assert said.stdout.count(b"egress: the upstream proxy wants a login, or another one (HTTP 401)\n") == 2
    assert b"Proxy-Auth" not in said.stdout
    await stage.settled()
    assert [row["fault"] for row in stage.rows] == ["the upstream proxy wants a login, or another one (HTTP 401)"] * 2
    assert "wr0ng" not in json.dumps(stage.rows) + said.stdout.decode()
    assert internet.asked == []


@needs_tinyproxy
@on_stage
async def test_what_the_policy_does_not_name_does_not_reach_the_proxy(
    stage: Scene, proxied: tuple[Internet, RealProxy]
) -> None:
    internet, proxy = proxied
    asked = len(proxy.asked)
    box = await stage.box(policy(internet))
    place = f"index.example:{internet.plain_port}"
    for command in (
        f"curl -sS http://evil.example:{internet.plain_port}/page",
        f"curl -sS -H 'Host: evil.example' http://{place}/page",
        f"curl -sS -x http://{place} http://evil.example/page",
        f"curl -sS -p -x http://{place} https://evil.example/page",
        f"printf 'CONNECT / HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n' | nc -w 2 index.example {internet.plain_port}",
    ):
        assert b"page of" not in (await box.exec(command, timeout=20)).stdout
    assert proxy.asked[asked:] == []


# -- one connection, and a proxy that answers as it is told

OK = b"HTTP/1.1 200 OK\r\nVia: 1.1 inner\r\nProxy-Agent: inner\r\nContent-Length: 5\r\n\r\nhello"
REQUEST = b"GET /a?b HTTP/1.1\r\nHost: files.example.org\r\nProxy-Authorization: mine\r\nAccept: a\r\n"
REQUEST += b"Connection: close\r\n\r\n"
CONNECT = b"CONNECT files.example.org:80 HTTP/1.1\r\nHost: files.example.org:80\r\n"
CONNECT += b"Proxy-Authorization: Basic bWU6czNjcmV0\r\n\r\n"


def for_tls_alone(answer: bytes) -> Handler:
    """A proxy that gives no tunnel to other ports than 443, as some are set by default; else it answers this."""

    async def handle(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
        head = await stage.head(reader)
        writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n" if head.startswith(b"CONNECT ") else answer)
        await writer.drain()

    return handle


@in_loop
async def test_a_proxy_that_tunnels_tls_alone_is_asked_itself(tmp_path: Path) -> None:
    for credentials in (False, True):
        async with staged(
            tmp_path / str(credentials), for_tls_alone(OK), proxy_login=LOGIN, credentials=credentials
        ) as stage:
            answer = await stage.say(REQUEST)
            assert stage.heads == [
                CONNECT,
                b"GET http://files.example.org/a?b HTTP/1.1\r\nHost: files.example.org\r\nAccept: a\r\n"
                b"Proxy-Authorization: Basic bWU6czNjcmV0\r\n\r\n",
            ]
            assert answer.endswith(b"\r\n\r\nhello")
            assert b"inner" not in answer
            assert stage.rows[0]["status"] == 200


@in_loop
async def test_a_path_cannot_become_another_host(tmp_path: Path) -> None:
    for path in (b"//evil.example/", b"/@evil.example/", b"/..//evil.example", b"/ http://evil.example/"):
        async with staged(tmp_path / path.hex(), for_tls_alone(OK), proxy_login=LOGIN) as stage:
            await stage.say(REQUEST.replace(b"/a?b", path))
            assert [head.split()[1] for head in stage.heads[1:]] in ([], [b"http://files.example.org" + path])


@in_loop
async def test_a_refusal_of_the_proxy_is_not_passed_on(tmp_path: Path) -> None:
    wants = b"HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic realm=inner\r\nContent-Length: 5\r\n\r\ninner"
    async with staged(tmp_path, for_tls_alone(wants), proxy_login=LOGIN) as stage:
        answer = await stage.say(REQUEST)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"inner" not in answer
        assert stage.rows[0]["fault"] == "the upstream proxy wants a login, or another one (HTTP 407)"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 407 No\r\n\r\n", "the upstream proxy wants a login, or another one (HTTP 407)"),
        (b"HTTP/1.1 403 No\r\n\r\n", f"the upstream proxy refuses connections to {NAME}:443 (HTTP 403)"),
        (b"HTTP/1.0 502 No\r\n\r\n", f"the upstream proxy cannot reach {NAME}:443 (HTTP 502)"),
        (b"HTTP/1.1 200 Yes\r\n\r\nmore", "the upstream proxy sent more than its response"),
        (b"SSH-2.0-x\r\n\r\n", "the upstream proxy does not answer in HTTP/1.1"),
        (b"HTTP/1.1 200 Yes\r\nX: " + b"y" * 70_000, "the upstream proxy does not answer in HTTP/1.1"),
        (b"HTTP/1.1 200", "the upstream proxy closed the connection without an answer"),
        (b"HTTP/1.1 200 Yes\r\n\r\n", f"{NAME}:443: "),
        (None, f"{NAME}:443 did not answer in "),
    ],
)
@in_loop
async def test_each_fault_of_a_proxy_has_its_name(
    answer: bytes | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told_proxy(answer) as (proxy, heads):
        monkeypatch.setattr(upstream, "CONNECT_SECONDS", 15.0 if answer is not None else 0.3)
        with pytest.raises(Unreachable) as found:
            await Upstream().connect(NAME, 443, tls=True, private=False, proxy=proxy)
        assert str(found.value).startswith(says)
        assert str(proxy.port) not in str(found.value)
        assert heads == [
            b"CONNECT files.example.org:443 HTTP/1.1\r\nHost: files.example.org:443\r\n"
            b"Proxy-Authorization: Basic bWU6czNjcmV0\r\n\r\n"
        ]


@in_loop
async def test_a_proxy_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = UpstreamProxy("127.0.0.1", free.getsockname()[1])
        with pytest.raises(Unreachable, match=r"^the upstream proxy cannot be reached: Connection refused$"):
            await Upstream().connect(NAME, 443, tls=True, private=False, proxy=gone)
    nameless = UpstreamProxy("nothing.invalid", 3128)
    with pytest.raises(Unreachable, match=r"^the upstream proxy cannot be reached: its name has no address$"):
        await Upstream().connect(NAME, 80, tls=False, private=False, proxy=nameless)


@in_loop
async def test_what_is_reached_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, and by network where all addresses of a name lie there; the check of private addresses holds then."""
    known = {"inner.example": ["10.0.0.1"], "half.example": ["10.0.0.1", "1.1.1.1"]}

    async def resolve(name: str, port: int) -> list[tuple[str, int]]:
        found = known.get(name.rstrip("."))
        if found is None and not name[0].isdigit():
            raise OSError("no such name")
        return [(address, port) for address in found or [name]]

    monkeypatch.setattr(upstream, "resolve", resolve)
    monkeypatch.setattr(dialing, "resolve", resolve)
    async with told_proxy(b"HTTP/1.1 403 No\r\n\r\n") as (proxy, heads):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        for exceptions, name, direct in (
            ("", "inner.example", False),
            ("10.0.0.0/8", "inner.example", True),
            ("10.0.0.0/8", "half.example", False),
            ("10.0.0.0/8", "unknown.example", False),
            (".inner.example", "inner.example", True),
            ("inner.example:8443", "inner.example", False),
        ):
            heads.clear()
            monkeypatch.setenv("NO_PROXY", exceptions)
            expected = "does not let boxes reach" if direct else "refuses connections"
            with pytest.raises(Unreachable, match=expected):
                await Upstream().connect(name, 443, tls=True, private=False)
            assert bool(heads) != direct, (exceptions, name)


@pytest.mark.parametrize("address", ["socks5://me:s3cret@proxy.example:1080", "https://me:s3cret@proxy.example"])
@in_loop
async def test_a_proxy_that_cannot_be_used_is_told_before_a_box_is_made(
    sandboxes: EmbeddedSandboxes, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address)
    await (await sandboxes.create(BoxSpec("host"))).destroy()
    with pytest.raises(RequestRefused, match=r"^HTTPS_PROXY: expected http://host:port") as said:
        await sandboxes.create(BoxSpec("host", egress=Egress("test", (NAME,))))
    assert "s3cret" not in str(said.value)
