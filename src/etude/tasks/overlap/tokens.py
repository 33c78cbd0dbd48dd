"""Code of any language as a sequence of tokens, in which names, numbers, strings, comments and layout do not matter.

No grammar is used: comments are recognised by patterns that fit most languages. Code that differs only in names gives
the same windows of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import xxhash

WINDOW = 40
"""Consecutive tokens that must match. Shorter matches occur between any two programs."""
_TOKEN = re.compile(
    r"""(?P<comment> //[^\n]* | /\*.*?\*/ | (?:(?<=\s)|^)\#(?=[\s!])[^\n]* | (?:(?<=\s)|^)--(?=\s)[^\n]* )
    | (?P<text> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | `(?:\\.|[^`\\])*` )
    | (?P<number> \d[\w.]* )
    | (?P<name> [^\W\d]\w* )
    | (?P<sign> [^\w\s] )""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_WORDS = frozenset(
    """abstract as async await bool break case catch char class const continue def default defer delete do double elif
    else enum except export extends false final finally float fn for from func function go goto if impl implements
    import in instanceof int interface is lambda let long loop match mod mut namespace new nil none not null or and pass
    package private protected pub public raise return self short static struct super switch this throw throws trait true
    try type typeof undefined union unsigned use using var void while with yield""".split()  # noqa: SIM905
)


def digest_of(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def windows(source: str) -> Iterator[tuple[int, int]]:
    """Yield the hash of every window of `WINDOW` tokens, and the line that it starts on. In each window names are
    replaced by numbers (0 for the first), so they do not matter."""
    tokens, lines = _tokens(source)
    for start in range(len(tokens) - WINDOW + 1):
        names: dict[str, int] = {}
        shape = [
            str(names.setdefault(token[1:], len(names))) if token[0] == "\0" else token
            for token in tokens[start : start + WINDOW]
        ]
        yield digest_of(" ".join(shape)), lines[start]


def _tokens(source: str) -> tuple[list[str], list[int]]:
    tokens: list[str] = []
    lines: list[int] = []
    line, at = 1, 0
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup, match[0]
        if kind == "comment":
            continue
        line += source.count("\n", at, match.start())
        at = match.start()
        lines.append(line)
        if kind == "name":
            tokens.append(text if text.lower() in _WORDS else f"\0{text}")
        else:
            tokens.append({"text": '""', "number": "0"}.get(kind or "", text))
    return tokens, lines
