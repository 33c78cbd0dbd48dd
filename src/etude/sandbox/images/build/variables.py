"""Handles words of a Dockerfile: splits them, removes quotes and escapes, and expands variables ($NAME, ${NAME:-word}
and similar).

The rules are a subset of a shell's: single quotes keep everything, double quotes keep spaces, and nothing is executed.
Errors are raised as ValueError.

Invariant: time and memory are bounded, since values can grow by a factor with each line (A=$A$A). So what one text
gains by its variables has a limit, as have all variables of a stage together.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_END = ""
_DEEPEST = 40
_MOST_GAINED = 1 << 17
"""Maximum number of characters by which variables may make a text longer. A box's whole environment may have fewer."""
_MOST_CHARACTERS, _MOST_VARIABLES = 1 << 18, 4096
"""Maximum number of characters that the values of all variables of a stage have together, and maximum number of these
variables."""
_TRIMMED_AT_ONCE = 16
"""Cutting a matching prefix or suffix off a value takes (characters of the value × those of the pattern) steps. So many
steps count as one character gained by variables."""


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Remove quotes and escapes, and substitute variables."""
    return _Expansion(text, variables, escape).until(_END)


def expand_document(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Substitute variables in a heredoc. Quotes mean nothing there; an escape works only before $ or an escape."""
    return _Expansion(text, variables, escape).kept_as_is(_END, ("$", escape))


class VariableLimits:
    """Limits how many variables a stage has, and how many characters their values have together."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """`variables` are those that the stage has already."""
        self._characters, self._count = _MOST_CHARACTERS, _MOST_VARIABLES
        for value in variables.values():
            self.take(value)

    def take(self, value: str) -> str:
        """Return the value of one more variable. Raise ValueError if a limit is exceeded."""
        self._characters -= len(value)
        self._count -= 1
        if self._characters < 0:
            raise ValueError(f"the variables would have more than {_MOST_CHARACTERS} characters")
        if self._count < 0:
            raise ValueError(f"more than {_MOST_VARIABLES} variables")
        return value


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
        self.gained = 0

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
        self._count(len(value or ""))  # Also where a modifier leaves less of it, since finding out takes time.
        return self._modified(match[0], value) if braced else value or ""

    def _count(self, gained: int) -> None:
        self.gained += gained
        if self.gained > _MOST_GAINED:
            raise ValueError(f"its variables would make it longer by more than {_MOST_GAINED} characters")

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
            self._count(len(value or "") * len(word) // _TRIMMED_AT_ONCE)
            return _trimmed(value or "", word, front=kind == "#", greedy=greedy)
        if value is None:
            raise ValueError(f"{name} has no value: {word or 'it must be given'}")
        return value


def _trimmed(value: str, pattern: str, *, front: bool, greedy: bool) -> str:
    """Cut the shortest (or, if `greedy`, longest) matching prefix or suffix off the value."""
    tokens = _tokens(pattern)
    if not front:  # A suffix is a prefix of what is written backwards.
        value, tokens = value[::-1], tokens[::-1]
    match = _prefix(tokens, greedy=greedy).match(value)
    rest = value[match.end() :] if match else value
    return rest if front else rest[::-1]


def _tokens(pattern: str) -> list[str]:
    """Split a shell's pattern into expressions for one character each, and stars."""
    found: list[str] = []
    at = 0
    while at < len(pattern):
        # A ] that comes first belongs to its [...]. A [ that is not closed stands for itself.
        end = pattern.find("]", at + 2 + pattern.startswith("!", at + 1)) if pattern[at] == "[" else -1
        part = pattern[at : end + 1] if end > 0 else pattern[at]
        at += len(part)
        if part != "*":
            found.append(fnmatch.translate(part).removesuffix(_END_OF_EXPRESSION))
        elif found[-1:] != ["*"]:
            found.append("*")
    return found


_END_OF_EXPRESSION = fnmatch.translate("").removeprefix("(?s:)")


def _prefix(tokens: list[str], *, greedy: bool) -> re.Pattern[str]:
    """Compile an expression for the shortest or longest prefix. What stands between two stars is looked for once, at
    its first place: any later one would leave less for the rest, so going back would be in vain."""
    pieces = [""]
    for token in tokens:
        if token == "*":
            pieces.append("")
        else:
            pieces[-1] += token
    first, *others = pieces
    if others:
        *between, last = others
        first += "".join(f"(?>.*?{piece})" for piece in between) + (".*" if greedy else ".*?") + last
    return re.compile(first, re.DOTALL)
