"""Heads of HTTP/1.1: what is read, and what is refused because two programs could read it in two ways."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.egress.http_head import (
    BadHead,
    Framing,
    carries_credentials,
    parse_request,
    parse_response,
    write_head,
)

TOKENS = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True)
VALUES = st.from_regex(r"([!-~]([ -~\t]{0,30}[!-~])?)?", fullmatch=True)
SPECIAL = ("host", "content-length", "transfer-encoding")


def request(*fields: str, first: str = "GET /a?b=c HTTP/1.1", host: str | None = "Host: index.example") -> bytes:
    return "\r\n".join([first, *([host] if host else []), *fields, "", ""]).encode("latin-1")


def test_a_plain_request() -> None:
    read = parse_request(request("Accept: */*", "X-Y:  z \t"))
    assert (read.method, read.target, read.path, read.host, read.minor) == ("GET", "/a?b=c", "/a", "index.example", 1)
    assert read.framing.empty
    assert read.keeps_alive
    assert read.end_to_end(lambda _: False) == [("Accept", "*/*"), ("X-Y", "z")]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request("Content-Length: 4", "Transfer-Encoding: chunked"), id="two lengths"),
        pytest.param(request("Content-Length: 4", "Content-Length: 4"), id="one count, twice"),
        pytest.param(request("Content-Length: 4, 4"), id="a list of counts"),
        pytest.param(request("Content-Length: +4"), id="a sign"),
        pytest.param(request("Content-Length: \xb2"), id="a digit beyond ASCII"),
        pytest.param(request("Transfer-Encoding: chunked, identity"), id="chunked is not last"),
        pytest.param(request("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), id="chunked twice"),
        pytest.param(request("Transfer-Encoding : chunked"), id="a space before the colon"),
        pytest.param(request(" Transfer-Encoding: chunked"), id="a line that begins with a space"),
        pytest.param(request("X: a", " b"), id="a folded line"),
        pytest.param(request("X: a\nTransfer-Encoding: chunked"), id="a bare line feed"),
        pytest.param(request("X: a\rTransfer-Encoding: chunked"), id="a bare carriage return"),
        pytest.param(request("no colon"), id="no colon"),
        pytest.param(request(": nameless"), id="no name"),
        pytest.param(request("Transfer-Encoding: chunked", first="GET / HTTP/1.0"), id="chunks in HTTP/1.0"),
        pytest.param(request(host=None), id="no host"),
        pytest.param(request("Host: evil.example"), id="two hosts"),
        pytest.param(request(first="GET  / HTTP/1.1"), id="two spaces"),
        pytest.param(request(first="GET /a b HTTP/1.1"), id="a space in the path"),
        pytest.param(request(first="GET / HTTP/2.0"), id="another version"),
        pytest.param(request(first="GET / HTTP/1.2"), id="a version to come"),
        pytest.param(request(first="GET / http/1.1"), id="a version in small letters"),
        pytest.param(request(first="GET http://evil.example/ HTTP/1.1"), id="as proxies are asked"),
        pytest.param(request(first="CONNECT evil.example:443 HTTP/1.1"), id="a tunnel"),
        pytest.param(request(first="OPTIONS * HTTP/1.1"), id="no path"),
        pytest.param(request(first="TRACE / HTTP/1.1"), id="what shows what a proxy added"),
        pytest.param(b"\r\n" + request(), id="an empty line ahead"),
        pytest.param(request()[:-2], id="torn"),
        pytest.param(request().replace(b"\r\n", b"\n"), id="line feeds alone"),
        pytest.param(request(*(f"X{n}: y" for n in range(300))), id="too many fields"),
        pytest.param(request(f"X: {'y' * 70_000}"), id="too long"),
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(BadHead):
        parse_request(data)


def test_fields_between_neighbours_stay_there() -> None:
    mine = ("Connection: close, X-Mine", "X-Mine: 1", "Upgrade: h2c", "TE: trailers", "Keep-Alive: 5")
    read = parse_request(request(*mine, "A: b"))
    assert read.end_to_end(lambda _: False) == [("A", "b")]
    assert not read.keeps_alive
    # Naming Host or the length there must not take them away from whom they bind.
    named = parse_request(request("Connection: host, content-length", "Content-Length: 3"))
    assert (named.host, named.framing) == ("index.example", Framing(3))


@pytest.mark.parametrize(
    ("head", "method", "framing"),
    [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5", "GET", Framing(5)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5", "HEAD", Framing(0)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", "GET", Framing(None, chunked=True)),
        ("HTTP/1.1 200", "GET", Framing(None)),
        ("HTTP/1.0 200 \r\nA: b", "GET", Framing(None)),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5", "GET", Framing(0)),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5", "GET", Framing(0)),
        ("HTTP/1.1 103 Early Hints", "GET", Framing(0)),
    ],
)
def test_how_long_an_answer_is(head: str, method: str, framing: Framing) -> None:
    assert parse_response(head.encode() + b"\r\n\r\n").framing_for(method) == framing


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 600 OK",
        "HTTP/2 200 OK",
        "HTTP/1.1 200 O\nK",
    ],
)
def test_an_answer_that_is_refused(head: str) -> None:
    with pytest.raises(BadHead):
        parse_response(head.encode() + b"\r\n\r\n")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    for parse in (parse_request, parse_response):
        for tail in (b"", b"\r\n\r\n"):
            try:
                parse(data + tail)
            except BadHead:
                continue


@given(TOKENS, st.from_regex(r"/[!-~]{0,40}", fullmatch=True), st.lists(st.tuples(TOKENS, VALUES), max_size=8))
def test_what_is_written_is_read(method: str, target: str, fields: list[tuple[str, str]]) -> None:
    fields = [(key, value) for key, value in fields if key.lower() not in SPECIAL]
    read = parse_request(write_head(f"{method} {target} HTTP/1.1", [("Host", "a.org"), *fields]))
    assert (read.method, read.target) == (method, target)
    assert read.fields == [("Host", "a.org"), *fields]


@given(st.text(alphabet=st.characters(max_codepoint=255), max_size=60))
def test_no_value_becomes_a_second_line(text: str) -> None:
    """Whatever passes as one field is written as one line."""
    data = f"GET / HTTP/1.1\r\nHost: a.org\r\nX: {text}\r\n\r\n".encode("latin-1")
    try:
        read = parse_request(data)
    except BadHead:
        return
    again = write_head("GET / HTTP/1.1", read.fields)
    assert len(re.findall(rb"[\r\n]+", again)) == again.count(b"\r\n") - 1
    assert parse_request(again).fields == read.fields


TELLING = """
Authorization Proxy-Authorization Cookie Cookie2 Api-Key ApiKey X-Api-Key X-Auth-Token X-Access-Token X-CSRF-Token
X-Amz-Security-Token X-Goog-Api-Key X-Goog-IAM-Authorization-Token X-GitHub-Token Private-Token Job-Token Deploy-Token
npm-otp X-JFrog-Art-Api X-Vault-Token Ocp-Apim-Subscription-Key X-Functions-Key X-NuGet-ApiKey X-Session-Id DPoP
X-Registry-Auth X-Auth-Key X-Password X-Client-Secret Signature X-Amzn-Oidc-Identity-Token X-Jwt-Assertion
"""
PLAIN = """
Accept Accept-Encoding User-Agent Range If-None-Match If-Modified-Since Content-Type Content-Encoding Git-Protocol
X-Amz-Content-SHA256 X-Amz-Date Idempotency-Key Referer Origin Cache-Control Pragma Accept-Language npm-command
npm-scope pacote-req-type Content-MD5 X-Requested-With Prefer Want-Digest Date If-Range Content-Language
Upgrade-Insecure-Requests
"""


def test_which_fields_say_who_asks() -> None:
    assert [name for name in TELLING.split() if not carries_credentials(name.lower())] == []
    assert [name for name in PLAIN.split() if carries_credentials(name.lower())] == []


@given(st.lists(st.tuples(st.from_regex(r"[A-Za-z][A-Za-z_-]{0,20}", fullmatch=True), st.just("v")), max_size=9))
def test_no_field_between_neighbours_gets_through(fields: list[tuple[str, str]]) -> None:
    kept = [(key, value) for key, value in fields if key.lower() not in ("host", "content-length", "transfer-encoding")]
    head = "".join(f"{key}: {value}\r\n" for key, value in kept)
    read = parse_request(f"GET / HTTP/1.1\r\nHost: a.example\r\n{head}\r\n".encode())
    left = [key.lower().replace("_", "-") for key, _ in read.end_to_end(carries_credentials)]
    assert not [key for key in left if key.startswith("proxy-") or carries_credentials(key)]
    assert not {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te"} & set(left)


@pytest.mark.parametrize("value", ["{}\0", "{}a\0", "a{}a{}\0", "a{}a", "{}", ":{}:\0"])
def test_a_field_is_read_in_linear_time(value: str) -> None:
    """A value of 60,000 blanks kept an expression busy for days, and with it the owner's event loop."""
    for blank in (" ", "\t", " \t"):
        field = "x:" + value.replace("{}", blank * (30_000 // len(blank)))
        if "\0" in value:
            with pytest.raises(BadHead, match="no field"):
                parse_request(request(field))
        else:
            assert parse_request(request(field)).all("x") == [field[2:].strip(" \t")]
