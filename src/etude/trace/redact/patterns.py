"""The secret patterns of patterns.toml, and a heuristic that tells secret values from ordinary program text.

Invariant: the time of a search is linear in the length of the text, whatever the text is, because every repetition in
an expression is bounded (tests check this).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of patterns.toml. The comment at the top of that file explains the fields."""

    name: str
    near: tuple[str, ...]
    regex: re.Pattern[str]
    judged: bool
    spread: bool
    hits: tuple[str, ...]
    misses: tuple[str, ...]

    def find(self, text: str, lowered: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each secret in the text. `lowered` is the text in lower case."""
        if not any(word in lowered for word in self.near):
            return
        group = "secret" if "secret" in self.regex.groupindex else 0
        for match in self.regex.finditer(text):
            start, end = match.span(group)
            if not self.judged or made_up(text[start:end], quoted=text[max(0, start - 1) : start] in ("'", '"', "`")):
                yield start, end


@cache
def patterns() -> tuple[Pattern, ...]:
    raw = resources.files("etude.trace.redact").joinpath("patterns.toml").read_text(encoding="utf-8")
    return tuple(_pattern(entry) for entry in tomllib.loads(raw)["pattern"])


def _pattern(entry: dict[str, Any]) -> Pattern:
    return Pattern(
        name=entry["name"],
        near=tuple(entry["near"]),
        regex=re.compile(entry["regex"]),
        judged=entry.get("judged", False),
        spread=entry.get("spread", False),
        hits=tuple(entry["hits"]),
        misses=tuple(entry["misses"]),
    )


_EXPRESSION = re.compile(r"[A-Za-z_]\w{0,99}(?:\.[A-Za-z_]\w{0,99}){0,9}(?:\[.{0,200})?")
_NUMBERED = re.compile(r"[a-z_]{0,20}(?:token|key|secret|password|passwd|pwd|value|param)s?_?\d{1,3}", re.IGNORECASE)
_PLACE = re.compile(r"(?:\.{0,2}|~)/[a-z0-9_./-]{1,400}|https?://.{0,400}|[a-z]+://\S{0,400}")
_DATE_OR_NUMBER = re.compile(r"[-+]?[0-9_.,:]{1,40}|\d{4}-\d\d-\d\d.{0,40}")
_WORDS = frozenset({"none", "null", "true", "false", "undefined", "string", "str", "text", "password", "passwd"})
_WORDS |= {"secret", "token", "hidden", "required", "optional", "missing", "invalid", "example", "changeme", "bearer"}
_WORDS |= {"basic", "default", "empty", "username", "secret_key", "api_key", "access_token"}


def made_up(value: str, *, quoted: bool) -> bool:
    """Whether a value looks like a password or key, not like a word, number, date, path, URL or expression."""
    if value.lower() in _WORDS or value[0] in "$%{*[" or len(set(value)) < 3 or "{" in value or "%s" in value:
        return False
    if _PLACE.fullmatch(value) or _DATE_OR_NUMBER.fullmatch(value) or _NUMBERED.fullmatch(value):
        return False
    if quoted:
        return True
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    if not mixed:
        return False
    # Program identifiers contain digits too; a dotted or indexed expression is not a secret.
    return not (_EXPRESSION.fullmatch(value) and any(mark in value for mark in ".["))


def unlikely_elsewhere(value: str) -> bool:
    """Whether a secret is distinctive: equal text elsewhere can only be the same secret, not an ordinary word."""
    return len(value) >= 8 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
