"""Finds the tests of a JavaScript file and the values that they expect, from the file's tokens.

A test is a call `test("name", ...)` or `it("name", ...)` that contains `assert.equal(something, literal)` or a similar
assertion. The file is not fully parsed. A file with unbalanced brackets gives no tests.
"""

from __future__ import annotations

from collections.abc import Iterator

from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.javascript_tables import Column, columns
from etude.tasks.verifiers.tests.javascript_tokens import Token, arguments_of, closing_of, tokens_of, value_of
from etude.tasks.verifiers.tests.site import ByteSpan, Site
from etude.tasks.verifiers.tests.visible_answers import reveals

_EQUAL = frozenset((b"equal", b"strictEqual", b"deepEqual", b"deepStrictEqual"))


def test_functions(source: bytes) -> list[TestFunction]:
    tokens = list(tokens_of(source))
    closing = closing_of(tokens)
    return list(_calls(source, tokens, closing, 0, len(tokens), ())) if closing is not None else []


def _calls(
    source: bytes, tokens: list[Token], closing: dict[int, int], start: int, end: int, path: tuple[str, ...]
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


def _sites(tokens: list[Token], closing: dict[int, int], start: int, end: int) -> Iterator[Site]:
    known = columns(tokens, closing, start, end)
    named: list[tuple[Column, ByteSpan, ByteSpan]] = []
    for place in range(start, end - 3):
        library, dot, method, bracket = tokens[place : place + 4]
        if (library.text, dot.text, bracket.text) != (b"assert", b".", b"(") or method.text not in _EQUAL:
            continue
        arguments = arguments_of(tokens, closing, place + 3)
        if len(arguments) < 2 or not arguments[0] or not arguments[1]:
            continue
        actual, expected = arguments[:2]
        statement = library.start, tokens[closing[place + 3]].end
        compared = actual[0].start, actual[-1].end
        here = [column for column in known if column.first <= place < column.last]
        meant = [column for column in here if column.name == expected[0].text and len(expected) == 1]
        if meant:
            named.append((meant[-1], statement, compared))
            continue
        try:
            value, rest = value_of(expected)
        except (ValueError, IndexError):
            continue
        if not rest:
            given = frozenset([repr(value)] if any(reveals(part, value) for part in _literals(actual)) else [])
            yield Site((expected[0].start, expected[-1].end), (value,), "", statement, compared, given, json=True)
    for column, statement, compared in named:
        if column.has_no_other_use(tokens, [(whole, part) for other, whole, part in named if other is column]):
            yield Site(None, column.values, "", statement, compared, json=True, blanks=column.blanks)


def _literals(tokens: list[Token]) -> Iterator[object]:
    """Yield the values of all literals in an expression. Lists and objects count as one value each."""
    while tokens:
        try:
            value, tokens = value_of(tokens)
            yield value
        except (ValueError, IndexError):
            tokens = tokens[1:]
