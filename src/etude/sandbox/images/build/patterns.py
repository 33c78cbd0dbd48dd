"""File name patterns of COPY and .dockerignore: * ? [a-z] [^a] match within one name, ** across names.

Patterns and names may be hostile, so matching takes time in proportion to the name's length: where another * follows in
the same name, the first place that fits is taken for good.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_SPECIAL = re.compile(r"[*?\[\\]")
_MOST_ACROSS = 2
"""Most uses of ** in one pattern: each multiplies the places to try."""


_STAR, _REST, _FOLDERS = "[^/]*", ".*", "(?:.*/)?"


def is_pattern(text: str) -> bool:
    return bool(_SPECIAL.search(text))


def compile_pattern(pattern: str, *, across: bool = False) -> re.Pattern[str]:
    """Compile a pattern for whole paths. ** is special only if `across`. Raises ValueError for a bad pattern."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            if across and pattern.startswith("*", at):
                at = re.compile(r"\*+/?(?:\*\*+/)*").match(pattern, at).end()  # type: ignore[union-attr]
                parts.append(_REST if at == len(pattern) else _FOLDERS)
            elif parts[-1:] != [_STAR]:
                parts.append(_STAR)
        elif char == "?":
            parts.append("[^/]")
        elif char == "[":
            found, at = _one_of(pattern, at)
            parts.append(found)
        elif char == "\\":
            if at == len(pattern):
                raise ValueError(f"pattern {pattern!r} ends in a \\")
            parts.append(re.escape(pattern[at]))
            at += 1
        else:
            parts.append(re.escape(char))
    if parts.count(_FOLDERS) > _MOST_ACROSS:
        raise ValueError(f"pattern {pattern!r}: ** may be used {_MOST_ACROSS} times")
    return re.compile("".join(_without_retries(parts)), re.DOTALL)


def _without_retries(parts: list[str]) -> list[str]:
    """Make a * and what follows it an atomic group, if another * follows in the same name."""
    found: list[str] = []
    at = 0
    while at < len(parts):
        end = at + 1
        while end < len(parts) and parts[end] not in (_STAR, _REST, _FOLDERS, "/"):
            end += 1
        if parts[at] == _STAR and parts[end : end + 1] == [_STAR]:
            found.append(f"(?>[^/]*?{''.join(parts[at + 1 : end])})")
        else:
            found += parts[at:end]
        at = end
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

    rules: tuple[tuple[re.Pattern[str], bool], ...] = ()
    """(pattern, whether it excludes) for each line of the file. A line that starts with "!" includes paths again."""

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
                rules.append((compile_pattern(pattern, across=True), out))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
        return cls(tuple(rules))

    @property
    def has_exceptions(self) -> bool:
        """Whether rules include files again ("!"), so that an excluded folder may hold files that are kept."""
        return any(not out for _, out in self.rules)

    def excludes(self, path: str) -> bool:
        names = path.split("/")
        paths = ["/".join(names[:count]) for count in range(1, len(names) + 1)]
        for rule, out in reversed(self.rules):
            if any(rule.fullmatch(candidate) for candidate in paths):
                return out
        return False
