"""Handles words of a Dockerfile: splits them, removes quotes and escapes, and expands variables ($NAME, ${NAME:-word}
and similar).

The rules are a subset of a shell's: single quotes keep everything, double quotes keep spaces, and nothing is executed.
Errors are raised as ValueError. A Dockerfile may be hostile, so variables that double each other end at MOST_EXPANDED.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_END = ""
_DEEPEST = 40
MOST_EXPANDED = 16 << 10
"""Most characters that variables may add to one text."""
_LONGEST_TRIMMED = 512
"""Longest value that # or % may cut: every length is tried."""


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Remove quotes and escapes, and substitute variables."""
    return _Expansion(text, variables, escape).until(_END)


def expand_document(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Substitute variables in a heredoc. Quotes mean nothing there; an escape works only before $ or an escape."""
    return _Expansion(text, variables, escape).kept_as_is(_END, ("$", escape))


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Split the text at white space outside quotes. Quotes and escapes stay in the words."""
    words: list[str] = []
    word, quote, at = "", "", 0
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'":
            char = text[at : at + 2]
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            words.append(word)
            word, at = "", at + 1
            continue
        word += char
        at += len(char)
    if quote:
        raise ValueError(f"{text!r}: a {quote} that is not closed")
    return [word for word in [*words, word] if word]


class _Expansion:
    """The expansion of one text, which has been read up to the position `at`."""

    def __init__(self, text: str, variables: Mapping[str, str], escape: str) -> None:
        self.text, self.variables, self.escape, self.at, self.depth = text, variables, escape, 0, 0
        self.room = MOST_EXPANDED

    def until(self, stop: str) -> str:
        """Expand the text up to the character `stop`, which is consumed."""
        parts = []
        while (char := self._next()) != stop:
            if char == _END:
                raise ValueError(f"{self.text!r}: ${{ without {stop}")
            if char == "'":
                parts.append(self._single_quoted())
            elif char == '"':
                parts.append(self.kept_as_is('"', ("$", '"', self.escape)))
            elif char == "$":
                parts.append(self._dollar())
            else:
                parts.append(self._next() if char == self.escape else char)
        return "".join(parts)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next(self) -> str:
        char = self._peek()
        self.at += len(char)
        return char

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise ValueError(f"{self.text!r}: a ' that is not closed")
        quoted, self.at = self.text[self.at : end], end + 1
        return quoted

    def kept_as_is(self, stop: str, escaped: tuple[str, ...]) -> str:
        """Expand the variables up to the character `stop`. An escape works only before the characters in `escaped`."""
        parts = []
        while (char := self._next()) != stop:
            if char == _END:
                raise ValueError(f"{self.text!r}: a {stop} that is not closed")
            if char == "$":
                parts.append(self._dollar())
            else:
                parts.append(self._next() if char == self.escape and self._peek() in escaped else char)
        return "".join(parts)

    def _dollar(self) -> str:
        braced = self._peek() == "{"
        match = _NAME.match(self.text, self.at + braced)
        if match is None:
            if braced:
                raise ValueError(f"{self.text!r}: ${{ without a name")
            return "$"
        self.at = match.end()
        value = self.variables.get(match[0])
        self.room -= len(value or "")
        if self.room < 0:
            raise ValueError(f"variables add more than {MOST_EXPANDED} characters to one text")
        return self._modified(match[0], value) if braced else value or ""

    def _modified(self, name: str, value: str | None) -> str:
        """Return the value of a ${NAME...}, modified by the operator (such as :-) that follows the name."""
        kind = self._next()
        if kind == "}":
            return value or ""
        if kind == ":":
            kind = self._next()
            known = kind in ("-", "+", "?")
            value = value or None  # With a colon, an empty value counts as unset.
        else:
            known = kind in ("-", "+", "?", "#", "%")
        if not known:
            raise ValueError(f"{self.text!r}: what follows {name} is not known; there are :- - :+ + :? ? # ## % and %%")
        greedy = kind in ("#", "%") and self._peek() == kind and bool(self._next())
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} ${{ within each other")
        word = self.until("}")
        self.depth -= 1
        if kind == "-":
            return word if value is None else value
        if kind == "+":
            return "" if value is None else word
        if kind != "?":
            return _trimmed(value or "", word, front=kind == "#", greedy=greedy)
        if value is None:
            raise ValueError(f"{name} has no value: {word or 'it must be given'}")
        return value


def _trimmed(value: str, pattern: str, *, front: bool, greedy: bool) -> str:
    """Cut the shortest (or, if `greedy`, longest) matching prefix or suffix off the value."""
    if len(value) > _LONGEST_TRIMMED:
        raise ValueError(f"a value of {len(value)} characters is cut; at most {_LONGEST_TRIMMED} are possible")
    cuts = range(len(value) + 1)
    for cut in cuts if front != greedy else reversed(cuts):
        if fnmatch.fnmatchcase(value[:cut] if front else value[cut:], pattern):
            return value[cut:] if front else value[:cut]
    return value
