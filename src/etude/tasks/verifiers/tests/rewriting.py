"""Rewrites test functions: under another name, with another expected value, or reporting a value instead of comparing
it."""

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
    """A value as source text at the site. All values are written the same way, so that quotes do not give the original
    away."""
    return json.dumps(value, ensure_ascii=False) if site.json else repr(value)


def respelt(function: TestFunction, literal: tuple[int, int]) -> Edit:
    """An edit that writes the site's own value in the same way as its alterations."""
    site = next(site for site in function.sites if site.literal == literal)
    return literal, (site.exception or spelt(site, site.value)).encode()


def telling(source: bytes, site: Site, keeper: str, key: str) -> Edit:
    """An edit that replaces the comparison: the compared value goes to the keeper, a builtin, and the expected value
    is removed."""
    assert site.statement is not None
    start, end = site.compared
    return site.statement, f'{keeper}("{key}", ('.encode() + source[start:end] + b"))"


def compose(
    file: str, source: bytes, groups: Mapping[TestFunction, list[bytes]], elsewhere: Iterable[Edit] = ()
) -> bytes:
    """The file with each of these functions replaced by copies of it, in this order, and some edits elsewhere. Raises
    ValueError if the result is not valid."""
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
