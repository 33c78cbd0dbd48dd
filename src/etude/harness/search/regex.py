"""Parser for the most common part of ripgrep's regular expressions; it raises UnsupportedSyntax for other syntax.

A parsed node matches at least the strings that ripgrep would match, possibly more. The parser may accept invalid
expressions, since ripgrep itself rejects them.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

MOST_DEPTH = 50
MOST_MEMBERS = 8
"""Maximum number of characters of a class such as `[abc]` that are listed; a larger class is parsed as Anything."""

_GROUPS = ("(?:", "(?P<", "(?<")
_ASSERTIONS = "bBAz"
_CLASSES = "dDwWsS"


class UnsupportedSyntax(Exception):
    """The pattern contains syntax that this parser does not support."""


@dataclass(frozen=True, slots=True)
class Text:
    """Node that matches any one of the strings in `options`. They contain no line ends."""

    options: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Anything:
    """Node that matches any text, including the empty text."""


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Node that matches `part` repeated `least` to `most` times; without a limit if `most` is None."""

    part: Node
    least: int
    most: int | None


Node = Text | Anything | Sequence | Choice | Repeat

NOTHING = Text(frozenset({b""}))


def parse(pattern: str, *, ignore_case: bool = False) -> Node:
    return _Parser(pattern, ignore_case).whole()


def literal(text: str, *, ignore_case: bool = False) -> Node:
    return Sequence(tuple(_character(each, ignore_case) for each in text))


def _character(each: str, ignore_case: bool) -> Node:
    if each in "\r\n" or "\ud800" <= each <= "\udfff":
        raise UnsupportedSyntax("a line end, or half a character")
    if ignore_case and not each.isascii():
        return Anything()
    return Text(frozenset({each.encode()}))


class _Parser:
    """Recursive-descent parser; `at` is the index of the next character to read."""

    def __init__(self, pattern: str, ignore_case: bool) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.ignore_case = ignore_case
        if pattern.startswith("(?i)"):
            self.at, self.ignore_case = 4, True

    def whole(self) -> Node:
        node = self.choice()
        if self.at < len(self.pattern):
            raise UnsupportedSyntax("a bracket that was not opened")
        return node

    def choice(self) -> Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise UnsupportedSyntax("brackets this deep")
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        self.depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts)) if parts else NOTHING

    def repeated(self, node: Node) -> Node:
        """Parse the quantifiers after a node. There may be several: `a{2}?` is lazy, and `a+*` repeats a repetition."""
        while self.at < len(self.pattern) and self.pattern[self.at] in "*+?{":
            sign = self.next()
            if sign == "{":
                node = Repeat(node, *self.bounds())
                self.take("?")
            else:
                node = Repeat(node, 1 if sign == "+" else 0, 1 if sign == "?" else None)
                self.take("?")
        return node

    def bounds(self) -> tuple[int, int | None]:
        inside, end, _ = self.pattern[self.at :].partition("}")
        least, comma, most = inside.partition(",")
        if not (
            end
            and len(inside) < 12
            and least.isdecimal()
            and least.isascii()
            and (not most or (most.isdecimal() and most.isascii()))
        ):
            raise UnsupportedSyntax("these bounds of a repetition")
        self.at += len(inside) + 1
        return int(least), (int(most) if most else None) if comma else int(least)

    def atom(self) -> Node:
        each = self.next()
        if each == "(":
            return self.group()
        if each == "[":
            return self.members()
        if each == ".":
            return Anything()
        if each in "^$":
            return NOTHING
        if each == "\\":
            return self.escape()
        if each in "*+?{":
            raise UnsupportedSyntax("a repetition of nothing")
        return _character(each, self.ignore_case)

    def group(self) -> Node:
        if self.pattern.startswith("?", self.at):
            start = next((s for s in _GROUPS if self.pattern.startswith(s, self.at - 1)), None)
            if start is None:
                raise UnsupportedSyntax("flags in the middle")
            self.at += len(start) - 1
            if start.endswith("<"):
                name, end, _ = self.pattern[self.at :].partition(">")
                if not end or not name.isidentifier() or not name.isascii():
                    raise UnsupportedSyntax("this name of a group")
                self.at += len(name) + 1
        node = self.choice()
        if not self.take(")"):
            raise UnsupportedSyntax("a bracket that is not closed")
        return node

    def escape(self) -> Node:
        each = self.next()
        if each in _CLASSES:
            return Anything()
        if each in _ASSERTIONS:
            if self.pattern.startswith("{", self.at):
                raise UnsupportedSyntax("a named boundary")
            return NOTHING
        if each == "t":
            return Text(frozenset({b"\t"}))
        if each in string.punctuation and each not in "<>":
            return _character(each, self.ignore_case)
        raise UnsupportedSyntax(f"the escape \\{each}")

    def members(self) -> Node:
        """Parse a character class of characters, escapes and ranges. Nested and named classes are not supported."""
        negated = self.take("^")
        found: set[str] = set()
        wide, first = negated, True
        while first or not self.take("]"):
            each = self.next()
            if each == "[" or (each in "&~-" and self.pattern.startswith(each, self.at)):
                raise UnsupportedSyntax("sets inside of a set")
            escaped = each == "\\"
            if escaped:
                each = self.next()
            if escaped and each in _CLASSES:
                wide, first = True, False
                continue
            if escaped and each not in string.punctuation:
                each = "\t" if each == "t" else ""
            if not each or each in "\r\n":
                raise UnsupportedSyntax("this member of a set")
            last = each
            if self.pattern.startswith("-", self.at) and not self.pattern.startswith("-]", self.at):
                self.next()
                last = self.next()
                if last in "[\\&~-\r\n" or last < each:
                    raise UnsupportedSyntax("this range")
            if ord(last) - ord(each) < MOST_MEMBERS:
                found.update(map(chr, range(ord(each), ord(last) + 1)))
            else:
                wide = True
            first = False
        if wide or len(found) > MOST_MEMBERS or not all(each.isascii() for each in found):
            return Anything()
        return Text(frozenset(each.encode() for each in found))

    def next(self) -> str:
        if self.at >= len(self.pattern):
            raise UnsupportedSyntax("an end too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def take(self, sign: str) -> bool:
        taken = self.pattern.startswith(sign, self.at)
        self.at += len(sign) * taken
        return taken
