"""What a connection of a box may say, over real sockets: passed on as it was, or refused before anyone hears of it."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop
from tests.sandbox.egress_stage import NAME, Stage, fixed, staged

from etude.sandbox.egress import connection, http_body
from etude.sandbox.egress.http_body import PIECE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSet-Cookie: a=b\r\n\r\nhello"
HOST = f"Host: {NAME}\r\n".encode()
CLOSE = HOST + b"Connection: close\r\n\r\n"


@in_loop
async def test_a_request_passes_and_is_logged(tmp_path: Path) -> None:
    async with staged(tmp_path, fixed(OK)) as stage:
        answer = await stage.say(b"GET /listed/?q=secret HTTP/1.1\r\nAccept: */*\r\n" + CLOSE)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nhello")
        assert stage.heads == [b"GET /listed/?q=secret HTTP/1.1\r\n" + HOST + b"Accept: */*\r\n\r\n"]
        (row,) = stage.rows
        assert row.pop("time") > 0
        assert row.pop("ms") >= 0
        assert row == {"box": "box", "policy": "test", "scheme": "http", "host": NAME, "port": 80, "method": "GET",
                       "path": "/listed/", "query": 9, "status": 200, "sent": 0, "received": 5}  # fmt: skip


@in_loop
async def test_the_host_is_passed_on_in_one_form(tmp_path: Path) -> None:
    """Nobody behind can read it otherwise."""
    async with staged(tmp_path, fixed(OK)) as stage:
        for host in (b"FILES.Example.ORG", b"files.example.org:", b"Files.example.org.:80"):
            await stage.say(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert stage.heads == [b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"] * 3


@in_loop
async def test_credentials_stay_behind(tmp_path: Path) -> None:
    secret = b"GET / HTTP/1.1\r\nauthORIZATION: Bearer s3cret\r\nCookie: s3cret\r\nX-API-Key: s3cret\r\n"
    secret += b"Private-Token: s3cret\r\nProxy-Authorization: s3cret\r\nAccept: a\r\n" + CLOSE
    async with staged(tmp_path, fixed(OK)) as stage:
        await stage.say(secret)
        assert b"s3cret" not in stage.heads[0]
        assert b"Accept: a\r\n" in stage.heads[0]
    async with staged(tmp_path, fixed(OK), credentials=True) as stage:
        await stage.say(secret)
        assert stage.heads[0].count(b"s3cret") == 4, "what is meant for a proxy goes to ours alone"


@in_loop
async def test_one_connection_serves_many_requests(tmp_path: Path) -> None:
    async with staged(tmp_path, fixed(OK, times=9)) as stage:
        answer = await stage.say((b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n") * 3 + b"GET /2 HTTP/1.1\r\n" + CLOSE)
        assert answer.count(b"hello") == 4
        assert (stage.connections, len(stage.rows)) == (1, 4)
    async with staged(tmp_path, fixed(OK)) as stage:
        answer = await stage.say((b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n") * 2 + b"GET /2 HTTP/1.1\r\n" + CLOSE)
        assert answer.count(b"hello") == 3
        assert stage.connections == 3


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, id="another host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: files.example.org.evil.example\r\n\r\n", 421, id="a longer host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: files.example.org:81\r\n\r\n", 421, id="another port"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: files.example.org, evil.example\r\n\r\n", 421, id="a list of hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 421, id="an empty host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: files.example.org:080\r\n\r\n", 421, id="a port of another form"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: files.example.org@evil.example\r\n\r\n", 421, id="a user"),
        pytest.param(b"CONNECT evil.example:443 HTTP/1.1\r\n" + HOST + b"\r\n", 405, id="a tunnel"),
        pytest.param(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n" + HOST + b"\r\n", 501, id="upgrade"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n" + HOST
                     + b"\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", 400, id="smuggled by two lengths"),
        pytest.param(b"POST / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n" + HOST + b"\r\n", 400, id="odd space"),
        pytest.param(b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n" + HOST + b"\r\n", 501, id="a coding"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n" + HOST + b"\r\n", 431, id="giant"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
    ],
)  # fmt: skip
@in_loop
async def test_refused_before_anyone_hears_of_it(tmp_path: Path, raw: bytes, status: int) -> None:
    async with staged(tmp_path, fixed(OK)) as stage:
        answer = await stage.say(raw)
        assert answer.split(b"\r\n")[0].startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\n\r\negress: " in answer
        assert answer.count(b"HTTP/1.1") == 1 + answer.count(b"of HTTP/1.1") + answer.count(b"only HTTP/1.1")
        assert (stage.heads, stage.connections) == ([], 0)
        (row,) = stage.rows
        assert row["status"] == status
        assert row["refused"] in answer.decode()


@in_loop
async def test_a_good_request_before_a_smuggled_one_is_the_only_one(tmp_path: Path) -> None:
    async with staged(tmp_path, fixed(OK, times=9)) as stage:
        await stage.say(b"GET /good HTTP/1.1\r\n" + HOST + b"\r\nGET /bad HTTP/1.1\r\nHost: evil.example\r\n\r\n"
                        b"GET /after HTTP/1.1\r\n" + CLOSE)  # fmt: skip
        assert [head.split()[1] for head in stage.heads] == [b"/good"]


@in_loop
async def test_names_with_another_dash_are_the_same_names(tmp_path: Path) -> None:
    """Servers behind CGI cannot tell X_Y from X-Y."""
    fields = b"Transfer_Encoding: chunked\r\nContent_Length: 3\r\nX_Api_Key: s3cret\r\nProxy_Authorization: s3cret\r\n"
    fields += (
        b"Accept: a\r\nX_Plain: b\r\nConnection: x_mine\r\nX-Mine: c\r\nMax-Forwards: 0\r\nTransfer-encodinG_: d\r\n"
    )
    async with staged(tmp_path, fixed(OK)) as stage:
        await stage.say(b"GET /x HTTP/1.1\r\n" + HOST + fields + b"Connection: close\r\n\r\n")
        assert stage.heads == [
            b"GET /x HTTP/1.1\r\nHost: files.example.org\r\nAccept: a\r\nX_Plain: b\r\nTransfer-encodinG_: d\r\n\r\n"
        ]


@in_loop
async def test_a_host_cannot_offer_a_way_by_udp(tmp_path: Path) -> None:
    offer = b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nContent-Length: 5\r\n\r\nhello'
    async with staged(tmp_path, fixed(offer)) as stage:
        answer = await stage.say(b"GET / HTTP/1.1\r\n" + CLOSE)
        assert answer.endswith(b"hello")
        assert b"h3" not in answer


# -- bodies


async def echo(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
    head = await stage.head(reader)
    if b"chunked" in head:
        data = await reader.readuntil(b"0\r\n\r\n")
    else:
        data = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + data)


@in_loop
async def test_bodies_in_both_framings(tmp_path: Path) -> None:
    async with staged(tmp_path, echo) as stage:
        counted = await stage.say(b"PUT / HTTP/1.1\r\nContent-Length: 3\r\n" + CLOSE + b"abc")
        assert counted.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        chunks = b"2;x=y\r\nab\r\n1\r\nc\r\n0\r\nTrailer: secret\r\n\r\n"
        fields = b"Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n"
        chunked = await stage.say(b"PUT / HTTP/1.1\r\n" + fields + CLOSE + chunks)
        assert b"railer" not in stage.heads[1]
        assert b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n" in chunked
        assert b"secret" not in chunked
        assert (stage.rows[0]["sent"], stage.rows[0]["received"]) == (3, 3)


@in_loop
async def test_an_older_client_gets_the_body_bare(tmp_path: Path) -> None:
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with staged(tmp_path, fixed(chunks)) as stage:
        answer = await stage.say(b"GET / HTTP/1.0\r\n" + HOST + b"\r\n")
        assert answer.endswith(b"Connection: close\r\n\r\nabcde")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: x\r\n\r\n"),
        (b"GET", b"HTTP/1.1 301 Moved\r\nLocation: https://evil.example/\r\nContent-Length: 0\r\n\r\n"),
    ],
)
@in_loop
async def test_answers_without_a_body_end_at_once(tmp_path: Path, method: bytes, answer: bytes) -> None:
    async with staged(tmp_path, fixed(answer, times=2)) as stage:
        twice = await stage.say(method + b" / HTTP/1.1\r\n" + HOST + b"\r\n" + method + b" / HTTP/1.1\r\n" + CLOSE)
        assert twice.count(b"HTTP/1.1 ") == 2
        for line in answer.split(b"\r\n"):
            assert twice.count(line) >= 2
        assert stage.connections == 1


@in_loop
async def test_early_hints_are_dropped_and_continue_is_answered_here(tmp_path: Path) -> None:
    async with staged(tmp_path, fixed(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK)) as stage:
        reader, writer = await stage.open()
        writer.write(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" + CLOSE)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"Link" not in answer
        assert b"Expect" not in stage.heads[0]
        writer.close()


@in_loop
async def test_a_client_that_does_not_read_stops_the_host(tmp_path: Path) -> None:
    """Memory stays bounded: what nobody reads is not fetched."""
    total, written, stopped = 1 << 40, 0, asyncio.Event()

    async def endless(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
        nonlocal written
        await stage.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        try:
            while True:
                writer.write(b"x" * PIECE)
                async with asyncio.timeout(1):
                    await writer.drain()
                written += PIECE
        except TimeoutError:
            stopped.set()

    async with staged(tmp_path, endless) as stage:
        reader, writer = await stage.open()
        writer.write(b"GET / HTTP/1.1\r\n" + CLOSE)
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(20):
            await stopped.wait()
        assert written < 32 << 20
        writer.transport.abort()


@in_loop
async def test_an_answer_before_the_end_of_the_request(tmp_path: Path) -> None:
    large = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with staged(tmp_path, fixed(large)) as stage:
        reader, writer = await stage.open()
        writer.write(b"PUT / HTTP/1.1\r\nContent-Length: 1000000\r\n" + HOST + b"\r\nabc")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        writer.close()


# -- hosts and clients that fail


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", id="short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", id="no last chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalfXX0\r\n\r\n", id="a long chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-4\r\nhalf\r\n0\r\n\r\n", id="a sign"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"T: x\r\n" * 99, id="trailers"),
    ],
)
@in_loop
async def test_a_torn_answer_does_not_look_whole(tmp_path: Path, answer: bytes) -> None:
    async with staged(tmp_path, fixed(answer)) as stage:
        reader, writer = await stage.open()
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert await stage.broken(reader)
        writer.close()
        (row,) = stage.rows
        assert row["fault"]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        pytest.param(b"", 504, id="none"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 502, id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: a\n b\r\n\r\n", 502, id="folded"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 502, id="two lengths"
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 50, 502, id="interim without end"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 502, id="giant"),
        pytest.param(b"220 mail.example.org ESMTP\r\n\r\n", 502, id="not HTTP"),
    ],
)
@in_loop
async def test_a_bad_host_is_said_to_be_one(tmp_path: Path, answer: bytes, status: int) -> None:
    async with staged(tmp_path, fixed(answer)) as stage:
        said = await stage.say(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert said.startswith(b"HTTP/1.1 %d " % status)
        (row,) = stage.rows
        assert (row["status"], row["fault"] in said.decode()) == (status, True)


async def silent(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
    await stage.head(reader)
    await reader.read()


@in_loop
async def test_a_host_that_hangs_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.1)
    async with staged(tmp_path, silent) as stage:
        assert (await stage.say(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")).startswith(b"HTTP/1.1 504 ")


@in_loop
async def test_a_host_that_stalls_in_the_middle_has_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_body, "STALL_SECONDS", 0.1)

    async def half(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
        await stage.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await reader.read()

    async with staged(tmp_path, half) as stage:
        reader, writer = await stage.open()
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert await stage.broken(reader)
        assert "nothing moved" in stage.rows[0]["fault"]
        writer.close()


async def leaves_when_asked_again(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
    await stage.head(reader)
    writer.write(OK)
    await stage.head(reader)
    writer.transport.abort()


@in_loop
async def test_a_kept_connection_that_breaks_is_made_again_where_nothing_is_lost(tmp_path: Path) -> None:
    first = b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n"
    async with staged(tmp_path, leaves_when_asked_again) as stage:
        answer = await stage.say(first + b"GET /2 HTTP/1.1\r\n" + CLOSE)
        assert (answer.count(b"hello"), stage.connections) == (2, 2)
        assert [row["status"] for row in stage.rows] == [200, 200]
        answer = await stage.say(first + b"POST /2 HTTP/1.1\r\nContent-Length: 0\r\n" + CLOSE)
        assert (answer.count(b"hello"), answer.count(b"HTTP/1.1 504")) == (1, 1)


@in_loop
async def test_a_slow_head_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    async with staged(tmp_path, fixed(OK)) as stage:
        assert (await stage.say(b"GET / HT")).startswith(b"HTTP/1.1 408 ")
        assert stage.connections == 0
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.1)
    async with staged(tmp_path / "second", fixed(OK)) as stage:
        assert await stage.say(b"") == b""
        assert stage.rows == []


@in_loop
async def test_a_client_that_leaves_takes_its_request_along(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def watching(stage: Stage, reader: StreamReader, writer: StreamWriter) -> None:
        await stage.head(reader)
        assert await reader.read() == b"abc"
        left.set()

    async with staged(tmp_path, watching) as stage:
        _, writer = await stage.open()
        writer.write(b"PUT / HTTP/1.1\r\nContent-Length: 9\r\n" + HOST + b"\r\nabc")
        await stage.asked.wait()
        writer.transport.abort()
        async with asyncio.timeout(10):
            await left.wait()
