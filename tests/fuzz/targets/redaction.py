"""Texts of traces: no secret stays, whatever is around it and however it is spelled."""

from __future__ import annotations

import base64
import json

from hypothesis import strategies as st
from tests.fuzz.target import Target

from etude.trace.redact import Known, Redactor

_SECRET = "x7Kd93mQ/B2nL+pR5t"
_SPELLINGS = (
    _SECRET,
    json.dumps(_SECRET)[1:-1],
    base64.b64encode(f"u:{_SECRET}".encode()).decode(),
    _SECRET.encode().hex(" "),
    f"{_SECRET[:7]}\n    {_SECRET[7:]}",
    f"{_SECRET[:7]}' +\n  '{_SECRET[7:]}",
)


def _run(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    redactor = Redactor([Known("env", _SECRET)])
    cleaned = redactor.redact({text[:20]: [text, 1, None]})
    [(name, (value, *_))] = cleaned.items()
    for said in (name, value, redactor.arguments(text)):
        assert not any(spelling in said for spelling in _SPELLINGS)
    again = Redactor([Known("env", _SECRET)]).redact(cleaned)
    assert again == cleaned or "[redacted:" in json.dumps(again)
    return " ".join(sorted(redactor.counts))


_AROUND = st.text(max_size=12) | st.sampled_from(
    [
        "password=",
        "Authorization: Bearer ",
        "-----BEGIN PRIVATE KEY-----\n",
        "://a:",
        "AKIA",
        "ghp_",
        "eyJ",
        "[redacted:",
        '{"a": "',
        "/home/",
    ]
)
_TEXTS = st.lists(_AROUND | st.sampled_from(_SPELLINGS), max_size=8).map(
    lambda parts: "".join(parts).encode("utf-8", "replace")
)

TARGETS = (
    Target(
        "redaction",
        _run,
        _TEXTS,
        ("etude.trace.redact",),
        lambda: [spelling.encode() for spelling in _SPELLINGS],
        largest=1 << 13,
    ),
)
