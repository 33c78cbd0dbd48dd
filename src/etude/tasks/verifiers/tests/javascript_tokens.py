"""Splits JavaScript into tokens, matches brackets, and evaluates literals. It is not a full parser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    rb"""(?P<space>\s+ | //[^\n]* | /\*.*?\*/)
    | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | (?P<template>`(?:[^`\\]|\\.)*`)
    | (?P<number>\d[\w.]*)
    | (?P<word>[A-Za-z_$][\w$]*)
    | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(rb"/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
_BEFORE_REGEX = frozenset((b"return", b"typeof", b"case", b"in", b"of", b"delete", b"void", b"throw", b"else", b"do"))
_OPEN, _CLOSE = {b"(": b")", b"[": b"]", b"{": b"}"}, frozenset((b")", b"]", b"}"))
_NAMED = {b"true": True, b"false": False, b"null": None}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: bytes
    start: int
    end: int


def tokens_of(source: bytes) -> Iterator[Token]:
    place, before = 0, Token("mark", b";", 0, 0)
    while match := _TOKEN.match(source, place):
        kind = match.lastgroup or ""
        # A slash after a name, number or closing bracket is a division; elsewhere it starts a regular expression.
        starts = before.text not in (b")", b"]", b"}") if before.kind == "mark" else before.text in _BEFORE_REGEX
        if match.group() == b"/" and starts:
            match = _REGEX.match(source, place) or match
            kind = "regex"
        place = match.end()
        if kind != "space":
            before = Token(kind, match.group(), match.start(), place)
            yield before


def closing_of(tokens: list[Token]) -> dict[int, int] | None:
    """Map each opening bracket's index to that of its closing one. Return None if the brackets do not match."""
    found: dict[int, int] = {}
    stack: list[int] = []
    for place, token in enumerate(tokens):
        if token.kind == "mark" and token.text in _OPEN:
            stack.append(place)
        elif token.kind == "mark" and token.text in _CLOSE:
            if not stack or _OPEN[tokens[stack[-1]].text] != token.text:
                return None
            found[stack.pop()] = place
    return None if stack else found


def arguments_of(tokens: Sequence[Token], closing: dict[int, int], bracket: int) -> list[list[Token]]:
    """Return the tokens of each argument of a call, or item of a list, that opens at `bracket`."""
    found: list[list[Token]] = [[]]
    place = bracket + 1
    while place < closing[bracket]:
        if tokens[place].text == b",":
            found.append([])
            place += 1
            continue
        after = closing.get(place, place) + 1
        found[-1] += tokens[place:after]
        place = after
    return found


def value_of(tokens: list[Token]) -> tuple[object, list[Token]]:
    """Return a literal and the tokens after it. Raises ValueError if it is computed, IndexError if it is cut off."""
    first, rest = tokens[0], tokens[1:]
    if first.text in _NAMED:
        return _NAMED[first.text], rest
    if first.text == b"-" and rest[0].kind == "number":
        return -_number(rest[0]), rest[1:]
    if first.kind == "number":
        return _number(first), rest
    if first.kind == "string":
        return _text(first), rest
    if first.text == b"[":
        items: list[object] = []
        while rest[0].text != b"]":
            item, rest = value_of(rest)
            items.append(item)
            rest = _after_comma(rest, b"]")
        return items, rest[1:]
    if first.text == b"{":
        found: dict[str, object] = {}
        while rest[0].text != b"}":
            if rest[0].kind not in ("word", "string") or rest[1].text != b":":
                raise ValueError("not a plain key")
            key = rest[0].text.decode() if rest[0].kind == "word" else _text(rest[0])
            found[key], rest = value_of(rest[2:])
            rest = _after_comma(rest, b"}")
        return found, rest[1:]
    raise ValueError("not a literal")


def _after_comma(tokens: list[Token], closing: bytes) -> list[Token]:
    if tokens[0].text == b",":
        return tokens[1:]
    if tokens[0].text != closing:
        raise ValueError("something is computed")
    return tokens


def _number(token: Token) -> int | float:
    if not re.fullmatch(rb"\d+|\d+\.\d+", token.text):
        raise ValueError("a number in another form")
    return float(token.text) if b"." in token.text else int(token.text)


def _text(token: Token) -> str:
    if b"\\" in token.text:
        raise ValueError("a text with escapes")
    return token.text[1:-1].decode("utf-8")
