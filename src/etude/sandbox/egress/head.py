"""Parses heads of HTTP/1.1 messages strictly: what two programs could read in two ways is refused, never repaired.

If a proxy and a server disagree about where a message ends, a second message can be smuggled inside the first. So every
line ends with CR LF, there is a single length told in a single way, no folded lines, and one Host.
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
_FIELD = re.compile(rb"(%b):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*" % _TOKEN)
_LENGTH = re.compile(r"[0-9]{1,18}")
# Fields between two neighbours on the way, not end to end.
_HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
_FOR_PROXIES = "proxy-"
_BETWEEN_NEIGHBOURS = {"CONNECT", "TRACE"}
_FRAMING = {"content-length", "transfer-encoding", "host"}
Fields = list[tuple[str, str]]


class BadHead(ValueError):
    """A head that is not exactly HTTP/1.1, or was sent to the wrong place; `status` is the answer to such a request."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Framing:
    """How long a body is: a number of bytes, chunked, or (length None) until the connection ends."""

    length: int | None = 0
    chunked: bool = False

    @property
    def empty(self) -> bool:
        return self.length == 0 and not self.chunked

    @property
    def delimited(self) -> bool:
        return self.chunked or self.length is not None


@dataclass(frozen=True, slots=True)
class Head:
    minor: int
    fields: Fields

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name]

    def options(self, name: str) -> set[str]:
        """The words of a comma-separated field."""
        return {word.strip().lower() for value in self.all(name) for word in value.split(",")} - {""}

    @property
    def keeps_alive(self) -> bool:
        return self.minor == 1 and "close" not in self.options("connection")

    def end_to_end(self, drops: Callable[[str], bool]) -> Fields:
        """The fields for the other end. Framing and Host are left out, since whoever sends them on writes them anew.

        Many servers read "_" in a name as "-", so the two are treated alike here too."""
        between = _HOP_BY_HOP | _FRAMING | {word.replace("_", "-") for word in self.options("connection")}

        def stays(name: str) -> bool:
            return name not in between and not name.startswith(_FOR_PROXIES) and not drops(name)

        return [(key, value) for key, value in self.fields if stays(key.lower().replace("_", "-"))]

    def told_length(self) -> Framing | None:
        """The framing that the fields declare; None if they declare none."""
        lengths, codings = self.all("content-length"), self.all("transfer-encoding")
        if codings and (lengths or self.minor == 0 or len(codings) > 1):
            raise BadHead("two ways to tell the body's length")
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

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def framing(self) -> Framing:
        return self.told_length() or Framing(0)

    @property
    def host(self) -> str:
        hosts = self.all("host")
        if len(hosts) != 1:
            raise BadHead(f"{len(hosts)} Host fields; expected one")
        return hosts[0]


@dataclass(frozen=True, slots=True)
class Response(Head):
    status: int
    reason: str

    def framing_for(self, method: str) -> Framing:
        told = self.told_length()
        if method == "HEAD" or self.status in (204, 304) or self.status < 200:
            return Framing(0)
        return told or Framing(None)


def parse_request(data: bytes) -> Request:
    """Parses a complete head, including the empty line."""
    first, fields = _split(data)
    match = _REQUEST.fullmatch(first)
    if match is None:
        if first.startswith(b"PRI * HTTP/2"):
            raise BadHead("HTTP/2 without asking; only HTTP/1.1 passes", 505)
        raise BadHead(f"no request line of HTTP/1.1: {first[:80]!r}")
    method, target = match[1].decode(), match[2].decode("latin-1")
    if method in _BETWEEN_NEIGHBOURS:
        raise BadHead(f"method {method}, which is between a client and a proxy", 405)
    if not target.startswith("/"):
        raise BadHead(f"{method} {target[:80]!r}: expected a path, as servers are asked and not as proxies are")
    request = Request(int(match[3]), fields, method, target)
    _ = request.framing, request.host  # Raises here for bad ones, before anything is sent on.
    return request


def parse_response(data: bytes) -> Response:
    first, fields = _split(data)
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadHead(f"no status line of HTTP/1.1: {first[:80]!r}")
    response = Response(int(match[1]), fields, int(match[2]), (match[3] or b"").decode("latin-1"))
    response.told_length()
    return response


def write_head(first: str, fields: Fields) -> bytes:
    return "\r\n".join([first, *(f"{key}: {value}" for key, value in fields), "", ""]).encode("latin-1")


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
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadHead(f"no field of HTTP/1.1: {line[:80]!r}")
        fields.append((match[1].decode(), match[2].decode("latin-1")))
    return lines[0], fields
