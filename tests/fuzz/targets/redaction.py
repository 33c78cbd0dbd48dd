"""Texts of traces: no secret stays, whatever is around it and however it is spelled."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from hypothesis import strategies as st
from tests.fuzz.target import Target

from etude.trace.redact import Known, Redactor

_SECRET = "x7Kd93mQ/B2nL+pR5t"
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: json.dumps(text)[1:-1],
    lambda text: base64.b64encode(f"u:{text}".encode()).decode(),
    lambda text: text.encode().hex(" "),
    lambda text: f"{text[:7]}\n    {text[7:]}",
    lambda text: f"{text[:7]}' +\n  '{text[7:]}",
)


def _run(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    redactor = Redactor([Known("env", _SECRET)])
    cleaned = redactor.redact({text[:20]: [text, 1, None]})
    said = json.dumps(cleaned, ensure_ascii=False)
    assert _SECRET not in said
    arguments = redactor.arguments(text)
    assert _SECRET not in arguments
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
_TEXTS = st.lists(_AROUND | st.sampled_from(_SPELLINGS).map(lambda spell: spell(_SECRET)), max_size=8).map(
    lambda parts: "".join(parts).encode("utf-8", "replace")
)

TARGETS = (
    Target(
        "redaction",
        _run,
        _TEXTS,
        ("etude.trace.redact",),
        lambda: [spell(_SECRET).encode() for spell in _SPELLINGS],
        largest=1 << 13,
    ),
)
