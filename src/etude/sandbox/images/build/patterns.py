"""File name patterns of COPY and .dockerignore: * ? [a-z] [^a] match within one name, ** across names.

Patterns and names may be hostile, so the time of a match is bounded. A regular expression is used only for patterns
with at most two wildcards * and **, at most one of them **; it takes at most quadratic time in the path's length. For
other patterns, all ways through the pattern are followed at once, in one pass over the path.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_SPECIAL = re.compile(r"[*?\[\\]")
_STAR, _ALL, _FOLDERS = "[^/]*", ".*", "(?:.*/)?"
"""The regular expressions that stand for the wildcards: for *, for ** at the end of a pattern, and for **/ before a
name."""
_WILD = (_STAR, _ALL, _FOLDERS)
_MAYBE = "**/"
"""Extra token before each _FOLDERS in the tokens of a Glob. At this token a match may still skip the whole **/; once
inside _FOLDERS it must go on to a slash."""
_LONGEST, _MOST_WILD, _MOST_RULES = 4096, 64, 1000


def is_pattern(text: str) -> bool:
    return bool(_SPECIAL.search(text))


class Glob:
    """A compiled file name pattern. Matching takes bounded time (see the module), whatever pattern and path are."""

    def __init__(self, pattern: str, *, across: bool = False) -> None:
        """Compile a pattern for whole paths. ** is special only if `across`. Raises ValueError for a bad pattern."""
        if len(pattern) > _LONGEST:
            raise ValueError(f"pattern {pattern[:80]!r}... has more than {_LONGEST} characters")
        tokens = _tokens(pattern, across=across)
        wild = [token for token in tokens if token in _WILD]
        if len(wild) > _MOST_WILD:
            raise ValueError(f"pattern {pattern[:80]!r} has more than {_MOST_WILD} * and **")
        # A regular expression tries all ways to share a path among its wildcards, so more than a few take forever.
        simple = len(wild) <= 2 and sum(token != _STAR for token in wild) <= 1
        self._expression = re.compile("".join(tokens), re.DOTALL) if simple else None
        self._tokens = [part for token in tokens for part in ((_MAYBE, token) if token == _FOLDERS else (token,))]
        self._skips = [(at, token) for at, token in enumerate(self._tokens) if token in (_STAR, _ALL, _MAYBE)]
        self._steps: dict[str, tuple[int, int]] = {}

    def matches(self, path: str) -> bool:
        if self._expression is not None:
            return self._expression.fullmatch(path) is not None
        # Follow all ways through the pattern at once. Bit i is set if what was read so far may end before token i.
        states = self._skip(1)
        for char in path:
            if char not in self._steps:
                self._steps[char] = self._step(char)
            advance, stay = self._steps[char]
            states = self._skip((states & advance) << 1 | states & stay)
        return bool(states >> len(self._tokens) & 1)

    def _step(self, char: str) -> tuple[int, int]:
        """Return two bit sets of tokens (bit i for token i): those that this character completes, and the wildcards
        that can go on after it."""
        advance = stay = 0
        for at, token in enumerate(self._tokens):
            if token in _WILD:
                stay |= (token != _STAR or char != "/") << at
                advance |= (token == _FOLDERS and char == "/") << at
            elif token != _MAYBE:
                advance |= (re.fullmatch(token, char, re.DOTALL) is not None) << at
        return advance, stay

    def _skip(self, states: int) -> int:
        """Return a bit set of pattern positions (bit i: before token i) together with those that can be reached from
        them without a character, because a wildcard may match nothing."""
        for at, token in self._skips:
            if states >> at & 1:
                states |= 1 << at + (2 if token == _MAYBE else 1)
                states |= (token == _MAYBE) << at + 1
        return states


def _tokens(pattern: str, *, across: bool) -> list[str]:
    """Split a pattern into tokens: regular expressions that match one character each, and wildcards (`_WILD`)."""
    found: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            if across and pattern.startswith("*", at):
                at = re.compile(r"\*+/?").match(pattern, at).end()  # type: ignore[union-attr]
                token = _ALL if at == len(pattern) else _FOLDERS
            else:
                token = _STAR
            if found[-1:] != [token]:
                found.append(token)
        elif char == "?":
            found.append("[^/]")
        elif char == "[":
            token, at = _one_of(pattern, at)
            found.append(token)
        elif char == "\\":
            if at == len(pattern):
                raise ValueError(f"pattern {pattern!r} ends in a \\")
            found.append(re.escape(pattern[at]))
            at += 1
        else:
            found.append(re.escape(char))
    return found


def _one_of(pattern: str, at: int) -> tuple[str, int]:
    """Translate the [...] at index `at` to a regular expression. Return it and the index after the [...]."""
    negated = pattern.startswith("^", at)
    at += negated
    ranges: list[str] = []
    while not (ranges and pattern.startswith("]", at)):
        low, at = _one_char(pattern, at)
        high = low
        if pattern.startswith("-", at):
            high, at = _one_char(pattern, at + 1)
        if low > high:
            raise ValueError(f"pattern {pattern!r}: {low}-{high} goes backwards")
        ranges.append(f"{re.escape(low)}-{re.escape(high)}")
    return f"(?!/)[{'^' if negated else ''}{''.join(ranges)}]", at + 1


def _one_char(pattern: str, at: int) -> tuple[str, int]:
    """Return the next character within a [...], and the index after it. Resolves escapes."""
    if pattern.startswith("\\", at):
        at += 1
    elif pattern.startswith(("-", "]"), at):
        raise ValueError(f"pattern {pattern!r}: {pattern[at]} in a [...] needs a \\ before it")
    if at >= len(pattern):
        raise ValueError(f"pattern {pattern!r}: a [ that is not closed")
    return pattern[at], at + 1


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules of a .dockerignore. The last rule that matches a path or one of its parents decides."""

    rules: tuple[tuple[Glob, bool], ...] = ()
    """(pattern, whether it excludes) for each line of the file with a pattern. A line that starts with "!" includes
    paths again."""

    @classmethod
    def from_text(cls, text: str) -> Ignored:
        rules = []
        for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
            if line.startswith("#") or not line.strip():
                continue
            pattern = line.strip()
            out = not pattern.startswith("!")
            pattern = pattern.removeprefix("!").strip()
            if not pattern:
                raise ValueError(f"line {number}: a ! without a pattern")
            pattern = posixpath.normpath(pattern).lstrip("/")
            if pattern in ("", "."):
                continue
            try:
                rules.append((Glob(pattern, across=True), out))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            if len(rules) > _MOST_RULES:
                raise ValueError(f"line {number}: more than {_MOST_RULES} patterns")
        return cls(tuple(rules))

    @property
    def has_exceptions(self) -> bool:
        """Whether rules include files again ("!"), so that an excluded folder may hold files that are kept."""
        return any(not out for _, out in self.rules)

    def excludes(self, path: str) -> bool:
        names = path.split("/")
        paths = ["/".join(names[:count]) for count in range(1, len(names) + 1)]
        for rule, out in reversed(self.rules):
            if any(rule.matches(candidate) for candidate in paths):
                return out
        return False
