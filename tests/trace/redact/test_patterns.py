"""Every pattern against its own examples, and against texts made to keep a search busy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from etude.trace.redact import Redactor
from etude.trace.redact.patterns import Pattern, made_up, patterns

_MOST = 20_000


@pytest.mark.parametrize("pattern", patterns(), ids=lambda pattern: pattern.name)
def test_a_pattern_finds_what_it_should_and_nothing_else(pattern: Pattern) -> None:
    assert pattern.hits
    assert pattern.misses
    for hit in pattern.hits:
        text = re.sub("[«»]", "", hit)
        start = hit.index("«")
        assert (start, hit.index("»") - 1) in list(pattern.find(text, text.lower())), text
    for miss in pattern.misses:
        assert list(pattern.find(miss, miss.lower())) == [], miss


@pytest.mark.parametrize("pattern", patterns(), ids=lambda pattern: pattern.name)
def test_all_the_patterns_together_leave_nothing_of_a_hit(pattern: Pattern) -> None:
    for hit in pattern.hits:
        before, secret, behind = re.split("[«»]", hit)
        cleaned = Redactor().redact(before + secret + behind)
        assert secret not in cleaned
        assert "[redacted:" in cleaned
        assert Redactor().redact(cleaned) == cleaned, "what was taken out is not taken out again"


@pytest.mark.parametrize("pattern", patterns(), ids=lambda pattern: pattern.name)
def test_every_repetition_is_bounded(pattern: Pattern) -> None:
    assert max(_repetitions(re._parser.parse(pattern.regex.pattern)), default=0) <= _MOST  # type: ignore[attr-defined]


def _repetitions(parsed: object) -> Iterator[int]:
    """How often each repetition in a parsed expression may go round."""
    for operation, argument in parsed:  # type: ignore[attr-defined]
        if "REPEAT" in str(operation):
            yield int(argument[1])
        yield from _inside(argument)


def _inside(argument: object) -> Iterator[int]:
    if isinstance(argument, re._parser.SubPattern):  # type: ignore[attr-defined]
        yield from _repetitions(argument)
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _inside(part)


HOSTILE = (
    "-----BEGIN PRIVATE KEY-----",
    "eyJ" + "a" * 90 + ".",
    "password_token_secret=",
    "://a:b",
    "sk-ghp_AKIA" + "A" * 30,
    "a.b@c.",
    "authorization: bearer ",
    "\n+KEY_TOKEN_SECRET_PASS=",
    "MIIEA" + "A" * 60 + "\n",
    "/home/ /users/ akia asia aiza ghp_ sk- npm_ sg. bot1234567890:",
)


def test_a_megabyte_of_what_every_pattern_begins_with_is_read_in_one_go() -> None:
    """What would take more than linear time would take hours here, and the test's own deadline ends it."""
    share = 1_000_000 // len(HOSTILE)
    text = "".join(piece * (share // len(piece)) for piece in HOSTILE)
    assert len(Redactor().redact(text)) > 0


@pytest.mark.parametrize(
    ("value", "quoted", "expected"),
    [
        ("hunter2xyz", False, True),
        ("correct-horse", True, True),
        ("correct", False, False),
        ("tokens[0]", False, False),
        ("self.token2", False, False),
        ("16000", False, False),
        ("********", True, False),
        ("${PASSWORD}", True, False),
        ("/etc/app/token", True, False),
        ("password1", False, False),
    ],
)
def test_what_stands_behind_a_name_is_judged(value: str, quoted: bool, expected: bool) -> None:
    assert made_up(value, quoted=quoted) is expected
