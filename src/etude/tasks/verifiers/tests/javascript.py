"""The tests of a JavaScript file and what they expect, found by tokens: `test("name", ...)` and `it("name", ...)` that
hold `assert.equal(something, literal)` or one of its kin.

Not a parser: a file that it cannot follow to the end (brackets that do not close) yields nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from etude.tasks.verifiers.tests.expectations import Site, TestFunction

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
_OPEN, _CLOSE = {b"(": b")", b"[": b"]", b"{": b"}"}, frozenset((b")", b"]", b"}"))
_EQUAL = frozenset((b"equal", b"strictEqual", b"deepEqual", b"deepStrictEqual"))
_NAMED = {b"true": True, b"false": False, b"null": None}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: bytes
    start: int
    end: int


def test_functions(source: bytes) -> list[TestFunction]:
    tokens = list(_tokens(source))
    closing = _closing(tokens)
    return list(_calls(source, tokens, closing, 0, len(tokens), ())) if closing is not None else []


def _tokens(source: bytes) -> Iterator[_Token]:
    place, before = 0, _Token("mark", b";", 0, 0)
    while match := _TOKEN.match(source, place):
        kind = match.lastgroup or ""
        # A slash divides what a name, a number or a closing bracket ends; elsewhere it begins an expression.
        if match.group() == b"/" and (before.kind == "mark" and before.text not in (b")", b"]", b"}")):
            match = _REGEX.match(source, place) or match
            kind = "regex"
        place = match.end()
        if kind != "space":
            before = _Token(kind, match.group(), match.start(), place)
            yield before


def _closing(tokens: list[_Token]) -> dict[int, int] | None:
    """Of each opening bracket, its closing one; None if they do not fit."""
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


def _calls(
    source: bytes, tokens: list[_Token], closing: dict[int, int], start: int, end: int, path: tuple[str, ...]
) -> Iterator[TestFunction]:
    place = start
    while place < end - 2:
        word, bracket, name = tokens[place : place + 3]
        plain = place == 0 or tokens[place - 1].text != b"."
        if word.text not in (b"test", b"it", b"describe", b"suite") or bracket.text != b"(" or not plain:
            place += 1
            continue
        close = closing[place + 1]
        if name.kind != "string" or b"\\" in name.text:
            place = close
            continue
        inner = (*path, name.text[1:-1].decode("utf-8", "replace"))
        below = list(_calls(source, tokens, closing, place + 3, close, inner))
        yield from below
        if word.text in (b"test", b"it") and not below:
            last = close + 1 if close + 1 < len(tokens) and tokens[close + 1].text == b";" else close
            indent = word.start - source.rfind(b"\n", 0, word.start) - 1
            sites = tuple(_sites(tokens, closing, place + 3, close))
            span = (word.start, tokens[last].end)
            yield TestFunction(inner, span, (name.start + 1, name.end - 1), indent, sites)
        place = close


def _sites(tokens: list[_Token], closing: dict[int, int], start: int, end: int) -> Iterator[Site]:
    for place in range(start, end - 3):
        library, dot, method, bracket = tokens[place : place + 4]
        if (library.text, dot.text, bracket.text) != (b"assert", b".", b"(") or method.text not in _EQUAL:
            continue
        arguments = _arguments(tokens, closing, place + 3)
        try:
            actual, expected = arguments[0], arguments[1]
            value, rest = _value(expected)
        except (ValueError, IndexError):
            continue
        if actual and not rest:
            statement = library.start, tokens[closing[place + 3]].end
            compared = actual[0].start, actual[-1].end
            yield Site((expected[0].start, expected[-1].end), value, "", statement, compared, json=True)


def _arguments(tokens: list[_Token], closing: dict[int, int], bracket: int) -> list[list[_Token]]:
    found: list[list[_Token]] = [[]]
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


def _value(tokens: list[_Token]) -> tuple[object, list[_Token]]:
    """Of a literal, and what comes after it; ValueError for what is computed, IndexError for what is cut off."""
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
            item, rest = _value(rest)
            items.append(item)
            rest = _after_comma(rest, b"]")
        return items, rest[1:]
    if first.text == b"{":
        found: dict[str, object] = {}
        while rest[0].text != b"}":
            if rest[0].kind not in ("word", "string") or rest[1].text != b":":
                raise ValueError("not a plain key")
            key = rest[0].text.decode() if rest[0].kind == "word" else _text(rest[0])
            found[key], rest = _value(rest[2:])
            rest = _after_comma(rest, b"}")
        return found, rest[1:]
    raise ValueError("not a literal")


def _after_comma(tokens: list[_Token], closing: bytes) -> list[_Token]:
    if tokens[0].text == b",":
        return tokens[1:]
    if tokens[0].text != closing:
        raise ValueError("something is computed")
    return tokens


def _number(token: _Token) -> int | float:
    if not re.fullmatch(rb"\d+|\d+\.\d+", token.text):
        raise ValueError("a number in another form")
    return float(token.text) if b"." in token.text else int(token.text)


def _text(token: _Token) -> str:
    if b"\\" in token.text:
        raise ValueError("a text with escapes")
    return token.text[1:-1].decode("utf-8")
