"""Replaces secrets in texts and JSON values by placeholders.

Invariants: one Redactor gives equal secrets equal placeholders in everything that it cleans. A distinctive secret
found in one text of a document is removed from all its texts. A text without secrets is unchanged.
"""

from __future__ import annotations

import json
import re
import string
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from etude.trace.redact.known import Known, Spelling
from etude.trace.redact.patterns import patterns, unlikely_elsewhere

_LINE_BREAK = r"(?:\\(?:r\\)?n|\r\n|\n)"
_QUOTE = r"""(?:"|'|\\["'])"""
_BREAKS = tuple(
    map(
        re.compile,
        (
            r"\r\n|\n",
            r"\\n",
            r"(?:\r\n|\n)[ +-]",
            # Indentation, also in a diff, and after a backslash that continues a line.
            rf"(?<![ \t])[ \t]*+\\?{_LINE_BREAK}[+-]?(?:[ \t]|\\t)*+",
            # Numbers of lines.
            rf"{_LINE_BREAK}[ \t]{{0,8}}[0-9]{{1,7}}[ \t]{{0,2}}(?:[:|\t]|\\t|[ ])[ \t]{{0,2}}",
            # Pieces of a string that a program joins.
            rf"""{_QUOTE}[ \t+.,&]*+(?:\\?{_LINE_BREAK})?[+-]?(?:[ \t+.&]|\\t)*+(?:(?<!["'])[A-Za-z])?{_QUOTE}""",
            # Bytes in hexadecimal.
            r"(?:\\\\?x|,(?:[ ]?0x)?|[ ](?:0x)?|0x|:|-)(?=[0-9A-Fa-f]{2})",
        ),
    )
)
"""Matches what may stand between the pieces of a split secret. Each is searched for alone. Most begin with one of a few
literal characters, to which `re` skips: that is several times as fast."""
_SHORTEST_BROKEN = 8
_BASE64 = frozenset(f"{string.ascii_letters}{string.digits}+/-_")


class _Found(NamedTuple):
    start: int
    end: int
    kind: str
    secret: str


class Redactor:
    def __init__(self, known: Iterable[Known] = ()) -> None:
        self.counts: Counter[str] = Counter()
        """Number of occurrences removed, by kind of secret."""
        self._known: dict[Spelling, Known] = {}
        """The known secrets, keyed by each of their spellings."""
        self._names: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()
        for item in known:
            self.add(item)

    def add(self, known: Known) -> None:
        for spelling in known.spellings():
            self._known.setdefault(spelling, known)

    def redact(self, document: Any) -> Any:
        self.learn(document)
        return self.clean(document)

    def learn(self, document: Any) -> None:
        """Remember the distinctive secrets of a document, so that `clean` removes them wherever they occur."""
        for text in _texts(document):
            lowered = text.lower()
            for pattern in patterns():
                if not pattern.spread:
                    continue
                for start, end in pattern.find(text, lowered):
                    if unlikely_elsewhere(text[start:end]):
                        self.add(Known(pattern.name, text[start:end]))

    def clean(self, document: Any) -> Any:
        if isinstance(document, str):
            return self._text(document)
        if isinstance(document, dict):
            return {self.clean(name): self.clean(value) for name, value in document.items()}
        if isinstance(document, list | tuple):
            return [self.clean(value) for value in document]
        return document

    def arguments(self, raw: str) -> str:
        """Clean a call's arguments, JSON as the model wrote it. The decoded values are cleaned too, since JSON escapes
        may hide a secret."""
        values = json_of(raw)
        cleaned = self.clean(values)
        return self._text(raw if cleaned == values else json.dumps(cleaned, ensure_ascii=False))

    def _text(self, text: str) -> str:
        found = sorted(self._find(text), key=lambda f: (f.start, -f.end))
        if not found:
            return text
        parts, at = [], 0
        for start, end, kind, secret in _merged(found, text):
            parts += [text[at:start], self._placeholder(kind, secret)]
            self.counts[kind] += 1
            at = end
        return "".join([*parts, text[at:]])

    def _find(self, text: str) -> Iterator[_Found]:
        lowered = text.lower()
        for pattern in patterns():
            for start, end in pattern.find(text, lowered):
                yield _Found(start, end, pattern.name, text[start:end])
        for spelling, known in self._known.items():
            for start, end in _places(text, spelling):
                if not known.whole or not _inside_word(text, start, end):
                    yield _Found(start, end, known.kind, known.value)
        splittable = [
            (spelling, known)
            for spelling, known in self._known.items()
            if not known.whole and len(spelling.text) >= _SHORTEST_BROKEN
        ]
        if splittable:
            for breaks in _BREAKS:
                yield from _broken(text, breaks, splittable)

    def _placeholder(self, kind: str, secret: str) -> str:
        if secret not in self._names:
            self._numbers[kind] += 1
            self._names[secret] = f"[redacted:{kind}-{self._numbers[kind]}]"
        return self._names[secret]


def _broken(text: str, breaks: re.Pattern[str], splittable: list[tuple[Spelling, Known]]) -> Iterator[_Found]:
    """Find secrets that are split into pieces by matches of `breaks`. `splittable` lists the secrets to look for, each
    with one of its spellings."""
    pieces, starts, at = [], [], 0
    for match in breaks.finditer(text):
        pieces.append(text[at : match.start()])
        starts.append(at)
        at = match.end()
    if not pieces:
        return
    joined = "".join([*pieces, text[at:]])
    starts.append(at)
    offsets = [0, *accumulate(len(piece) for piece in pieces)]

    def place(offset: int) -> int:
        piece = bisect_right(offsets, offset) - 1
        return starts[piece] + offset - offsets[piece]

    for spelling, known in splittable:
        for start, end in _places(joined, spelling):
            yield _Found(place(start), place(end - 1) + 1, known.kind, known.value)


def json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _merged(found: list[_Found], text: str) -> Iterator[_Found]:
    """Merge overlapping finds, so that each stretch of text is replaced once. `found` is sorted by start."""
    last = found[0]
    for item in found[1:]:
        if item.start >= last.end:
            yield last
            last = item
        elif item.end > last.end:
            last = _Found(last.start, item.end, last.kind, text[last.start : item.end])
    yield last


def _places(text: str, spelling: Spelling) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each occurrence of a secret's spelling. An adjacent Base64 character that holds bits of the
    secret is included."""
    start = text.find(spelling.text)
    while start >= 0:
        end = start + len(spelling.text)
        before, behind = text[start - 1 : start] in _BASE64, text[end : end + 1] in _BASE64
        yield start - (spelling.before and before), end + (spelling.behind and behind)
        start = text.find(spelling.text, end)


def _inside_word(text: str, start: int, end: int) -> bool:
    before, behind = text[start - 1 : start] if start else "", text[end : end + 1]
    return any(c.isalnum() or c == "_" for c in (before, behind) if c)


def _texts(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from _texts(name)
            yield from _texts(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _texts(value)
