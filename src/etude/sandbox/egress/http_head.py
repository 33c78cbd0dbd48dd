"""Parses heads of HTTP/1.1 messages strictly. A head that two programs could read differently is refused, never
repaired.

If a proxy and a server disagree about where a message ends, a second message can be smuggled inside the first. So every
line must end with CR LF, the length must be declared once and in one way, there must be no folded lines, and a request
must have exactly one Host field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_HEAD = 1 << 16
_MOST_FIELDS = 200
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rb"(%b) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])" % _TOKEN)
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?")
_NAME, _VALUE = re.compile(_TOKEN), re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""Name and value of a field. Blanks are stripped separately, since one expression for all of it would be quadratic."""
_LENGTH = re.compile(r"[0-9]{1,18}")
# Fields for the next hop only; they are never forwarded.
_HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
_PROXY_PREFIX = "proxy-"
_HOP_METHODS = {"CONNECT", "TRACE"}
"""Methods that concern the path between a client and its proxies. They are refused, not forwarded."""
_FRAMING = {"content-length", "transfer-encoding", "host"}
# Names of fields that carry credentials, by words, since every service has its own name for its token. An idempotency
# key only distinguishes requests.
_CREDENTIALS = re.compile(
    r"auth|cookie|token|secret|session|credential|signature|passw|api-?key|(?<!idempotency-)key$|-otp$|jwt|dpop|-art-api$"
)
Fields = list[tuple[str, str]]


class BadHead(ValueError):
    """The head of a request or response is not valid HTTP/1.1, or names another host than its connection. `status` is
    that of the response that the box gets."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Framing:
    """How a body's end is found: by its length, by chunks, or (length None) by the end of the connection."""

    length: int | None = 0
    chunked: bool = False

    @property
    def empty(self) -> bool:
        return self.length == 0 and not self.chunked

    @property
    def delimited(self) -> bool:
        """Whether the body's end can be found without ending the connection."""
        return self.chunked or self.length is not None


@dataclass(frozen=True, slots=True)
class Head:
    """The common base of request and response heads. `minor` is the x of HTTP/1.x."""

    minor: int
    fields: Fields

    def all(self, name: str) -> list[str]:
        """Return the values of all fields with this name. `name` is in lower case."""
        return [value for key, value in self.fields if key.lower() == name]

    def options(self, name: str) -> set[str]:
        """Return the words of a comma-separated field, in lower case."""
        return {word.strip().lower() for value in self.all(name) for word in value.split(",")} - {""}

    @property
    def keeps_alive(self) -> bool:
        """Whether the sender will use the connection for further messages."""
        return self.minor == 1 and "close" not in self.options("connection")

    def end_to_end(self, drops: Callable[[str], bool]) -> Fields:
        """Return the fields to forward: not hop-by-hop ones, not those that `drops(name)` names, and not framing and
        Host, which the forwarder writes itself. Many servers read "_" in a name as "-", so both are treated alike."""
        between = _HOP_BY_HOP | _FRAMING | {word.replace("_", "-") for word in self.options("connection")}

        def stays(name: str) -> bool:
            return name not in between and not name.startswith(_PROXY_PREFIX) and not drops(name)

        return [(key, value) for key, value in self.fields if stays(key.lower().replace("_", "-"))]

    def declared_framing(self) -> Framing | None:
        """Return the framing that the fields declare, or None. Raise BadHead if it is ambiguous."""
        lengths, codings = self.all("content-length"), self.all("transfer-encoding")
        if codings and (lengths or self.minor == 0 or len(codings) > 1):
            raise BadHead("the body's length is declared in two ways")
        if codings:
            if codings[0].lower() != "chunked":
                raise BadHead(f"transfer coding {codings[0]!r}; only chunked passes", 501)
            return Framing(None, chunked=True)
        if lengths:
            if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
                raise BadHead(f"content length {', '.join(lengths)!r}; expected one number")
            return Framing(int(lengths[0]))
        return None


@dataclass(frozen=True, slots=True)
class Request(Head):
    method: str
    target: str
    """The path with its query, as in the request line."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def framing(self) -> Framing:
        return self.declared_framing() or Framing(0)

    @property
    def host(self) -> str:
        """The value of the Host field. Raise BadHead unless there is exactly one."""
        hosts = self.all("host")
        if len(hosts) != 1:
            raise BadHead(f"{len(hosts)} Host fields; expected one")
        return hosts[0]


@dataclass(frozen=True, slots=True)
class Response(Head):
    status: int
    reason: str

    def framing_for(self, method: str) -> Framing:
        framing = self.declared_framing()
        if method == "HEAD" or self.status in (204, 304) or self.status < 200:
            return Framing(0)
        return framing or Framing(None)


def parse_request(data: bytes) -> Request:
    """Parse a complete head of a request, including its empty line."""
    first, fields = _split(data)
    match = _REQUEST.fullmatch(first)
    if match is None:
        if first.startswith(b"PRI * HTTP/2"):
            raise BadHead("HTTP/2 without asking; only HTTP/1.1 passes", 505)
        raise BadHead(f"no request line of HTTP/1.1: {first[:80]!r}")
    method, target = match[1].decode(), match[2].decode("latin-1")
    if method in _HOP_METHODS:
        raise BadHead(f"method {method}, which is between a client and a proxy", 405)
    if not target.startswith("/"):
        raise BadHead(f"{method} {target[:80]!r}: expected a path, as servers are asked and not as proxies are")
    request = Request(int(match[3]), fields, method, target)
    _ = request.framing, request.host  # Raises for bad ones now, before anything is forwarded.
    return request


def parse_response(data: bytes) -> Response:
    first, fields = _split(data)
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadHead(f"no status line of HTTP/1.1: {first[:80]!r}")
    response = Response(int(match[1]), fields, int(match[2]), (match[3] or b"").decode("latin-1"))
    response.declared_framing()
    return response


def write_head(first: str, fields: Fields) -> bytes:
    """Return the bytes of a message's head. `first` is the request line or status line."""
    return "\r\n".join([first, *(f"{key}: {value}" for key, value in fields), "", ""]).encode("latin-1")


def carries_credentials(field: str) -> bool:
    """Whether a request field carries credentials, judged by its name in lower case. The proxy removes such fields, so
    that an agent cannot use a secret that it has found. Paths and queries are left alone: signed download URLs carry
    such words."""
    return _CREDENTIALS.search(field) is not None


def _split(data: bytes) -> tuple[bytes, Fields]:
    if len(data) > MAX_HEAD:
        raise BadHead(f"a head of more than {MAX_HEAD} bytes", 431)
    if not data.endswith(b"\r\n\r\n"):
        raise BadHead("a torn head")
    lines = data[:-4].split(b"\r\n")
    if len(lines) > _MOST_FIELDS:
        raise BadHead(f"more than {_MOST_FIELDS} fields", 431)
    fields = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not (colon and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise BadHead(f"no field of HTTP/1.1: {line[:80]!r}")
        fields.append((name.decode(), value.strip(b" \t").decode("latin-1")))
    return lines[0], fields
