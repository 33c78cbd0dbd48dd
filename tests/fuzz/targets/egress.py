"""What a box sends to its egress proxy, and what the hosts behind it answer: heads and bodies of HTTP/1.1."""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of

from etude.sandbox.egress.http_body import BrokenTransfer, pieces, read_head
from etude.sandbox.egress.http_head import (
    MAX_HEAD,
    BadHead,
    Framing,
    carries_credentials,
    parse_request,
    parse_response,
    write_head,
)
from etude.sandbox.egress.policy import host_name

_FRAMING = ("content-length", "transfer-encoding", "host", "connection", "upgrade")


def _run_request(data: bytes) -> str:
    try:
        request = parse_request(data)
    except BadHead as error:
        return kind_of(error)
    host_name(request.host.partition(":")[0])
    passed = request.end_to_end(carries_credentials)
    assert not {name.lower() for name, _ in passed} & set(_FRAMING), "a field for the next hop only is passed on"
    assert all("\r" not in text and "\n" not in text and "\0" not in text for field in passed for text in field)
    again = parse_request(
        write_head(f"{request.method} {request.target} HTTP/1.{request.minor}", [*passed, ("Host", request.host)])
    )
    assert (again.method, again.target, again.host) == (request.method, request.target, request.host)
    assert again.end_to_end(carries_credentials) == passed, "what is passed on is read in another way"
    return f"{request.framing} {request.keeps_alive} {min(len(passed), 3)}"


def _run_response(data: bytes) -> str:
    """The head of a response, and its body by the framing that the head declares."""
    head, end, rest = data.partition(b"\r\n\r\n")
    try:
        response = parse_response(head + end)
        framing = response.framing_for("GET")
    except BadHead as error:
        return kind_of(error)
    try:
        size = asyncio.run(_body(rest, framing))
    except BrokenTransfer as error:
        return kind_of(error)
    assert size <= len(rest)
    return f"{response.status // 100} {framing.chunked} {framing.delimited}"


async def _body(data: bytes, framing: Framing) -> int:
    reader = asyncio.StreamReader(limit=MAX_HEAD)
    reader.feed_data(data)
    reader.feed_eof()
    return sum([len(piece) async for piece in pieces(reader, framing)])


def _run_stream(data: bytes) -> str:
    """Read heads and bodies one after another, as a connection does."""

    async def serve() -> str:
        reader = asyncio.StreamReader(limit=MAX_HEAD)
        reader.feed_data(data)
        reader.feed_eof()
        for count in range(50):
            head = await read_head(reader, idle=1, patience=1)
            if not head:
                return f"{min(count, 5)} requests"
            request = parse_request(head)
            async for _ in pieces(reader, request.framing):
                pass
        return "many requests"

    try:
        return asyncio.run(serve())
    except (BadHead, BrokenTransfer) as error:
        return kind_of(error)


_TEXTS = st.sampled_from(
    [*("a", "index.example", "5", "chunked", "close", "x-a", "keep-alive, x-a", "100-continue", "h2c", "1,2")]
) | (st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=8))
_FIELDS = st.builds(
    lambda name, colon, value, end: f"{name}{colon}{value}{end}",
    st.sampled_from(
        [*_FRAMING, "Host", "Content-Length", "X-A", "Authorization", "Expect", "Proxy-X", "x_a", "", "a b"]
    ),
    st.sampled_from([": ", ": ", ":", " : ", ":\t", ""]),
    _TEXTS,
    st.sampled_from(["\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n ", "\0\r\n"]),
)
_FIRST = st.sampled_from(
    [
        *(
            "GET / HTTP/1.1",
            "POST /a?b=c HTTP/1.1",
            "CONNECT a:1 HTTP/1.1",
            "GET http://a/ HTTP/1.1",
            "PRI * HTTP/2.0",
            "GET  / HTTP/1.1",
        ),
        *("HEAD / HTTP/1.0", "GET / HTTP/1.1 x", "get / http/1.1"),
    ]
)
_STATUS = st.sampled_from(
    [
        *(
            "HTTP/1.1 200 OK",
            "HTTP/1.1 204",
            "HTTP/1.0 304 x",
            "HTTP/1.1 100 Continue",
            "HTTP/1.1 999 x",
            "HTTP/2 200",
            "HTTP/1.1 200 é",
        )
    ]
)
_HOST = st.sampled_from(["Host: index.example\r\n", "", "Host: a:80\r\n"])
_BODIES = st.sampled_from(
    [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\nT: 1\r\n\r\n", b"5\r\nhel"]
) | st.binary(max_size=8)


def _message(first: str, host: str, fields: list[str], body: bytes) -> bytes:
    return f"{first}\r\n{host}{''.join(fields)}\r\n".encode("latin-1", "replace") + body


_REQUESTS = st.builds(_message, _FIRST, _HOST, st.lists(_FIELDS, max_size=4), st.just(b""))
_RESPONSES = st.builds(_message, _STATUS, st.just(""), st.lists(_FIELDS, max_size=4), _BODIES)
_STREAMS = st.lists(st.builds(_message, _FIRST, _HOST, st.lists(_FIELDS, max_size=2), _BODIES), max_size=3).map(
    b"".join
)


def _examples() -> list[bytes]:
    return [
        b"GET /a/b HTTP/1.1\r\nHost: index.example\r\nAccept: */*\r\nCookie: a=b\r\nConnection: keep-alive\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]


_WATCHED = ("etude.sandbox.egress",)
_LARGEST = MAX_HEAD + 16

TARGETS = (
    Target("http-request", _run_request, _REQUESTS, _WATCHED, _examples, largest=_LARGEST),
    Target("http-response", _run_response, _RESPONSES, _WATCHED, _examples, largest=_LARGEST),
    Target("http-stream", _run_stream, _STREAMS, _WATCHED, _examples, largest=_LARGEST),
)
