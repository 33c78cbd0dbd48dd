"""Test functions in other words: under another name, asking for something else, or telling instead of asking."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping

from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.site import Edit, Site


def copy_of(source: bytes, function: TestFunction, name: str, edits: Iterable[Edit] = ()) -> bytes:
    start, end = function.span
    return _edited(source, start, end, [(function.name, name.encode()), *edits])


def spelt(site: Site, value: object) -> str:
    """A value as it is written at the site: all in one way, so that the original is not told by its quotes."""
    return json.dumps(value, ensure_ascii=False) if site.json else repr(value)


def respelt(function: TestFunction, literal: tuple[int, int]) -> Edit:
    """The site's own value, written as its alterations are."""
    site = next(site for site in function.sites if site.literal == literal)
    return literal, (site.exception or spelt(site, site.value)).encode()


def telling(source: bytes, site: Site, keeper: str, key: str) -> Edit:
    """The comparison is made elsewhere: what is compared goes to the keeper, a builtin, and the literal goes."""
    assert site.statement is not None
    start, end = site.compared
    return site.statement, f'{keeper}("{key}", ('.encode() + source[start:end] + b"))"


def compose(
    file: str, source: bytes, groups: Mapping[TestFunction, list[bytes]], elsewhere: Iterable[Edit] = ()
) -> bytes:
    """The file with each of these functions replaced by copies of it, in this order, and some edits between them;
    ValueError if it cannot be."""
    edits = list(elsewhere)
    for function, copies in groups.items():
        start = function.span[0]
        before = source[source.rfind(b"\n", 0, start) + 1 : start]
        if before.strip():
            raise ValueError(f"{function.path[-1]} shares its first line")
        edits.append((function.span, (b"\n\n" + before).join(copies)))
    changed = _edited(source, 0, len(source), edits)
    try:
        if file.endswith(".py"):
            ast.parse(changed)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} of what was made: {error.msg}") from error
    return changed


def _edited(source: bytes, start: int, end: int, edits: Iterable[Edit]) -> bytes:
    pieces, place = [], start
    for (first, last), text in sorted(edits):
        pieces += [source[place:first], text]
        place = last
    return b"".join([*pieces, source[place:end]])
