"""Makes rewritten copies of test functions, with another name, another expected value, or a call that reports a value
instead of comparing it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping

from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.site import Edit, Site


def copy_of(source: bytes, function: TestFunction, name: str, edits: Iterable[Edit] = ()) -> bytes:
    start, end = function.span
    return _edited(source, start, end, [(function.name, name.encode()), *edits])


def source_text(site: Site, value: object) -> str:
    """Write a value as source. Originals and alterations all have this form, so that quotes do not reveal anything."""
    return json.dumps(value, ensure_ascii=False) if site.json else repr(value)


def rewritten_literal(function: TestFunction, literal: tuple[int, int]) -> Edit:
    """Return an edit that writes the expected value at `literal` in the form of altered values. Without it, the value's
    form would show which version of the test is the original."""
    site = next(site for site in function.sites if site.literal == literal)
    return literal, (site.exception or source_text(site, site.value)).encode()


def report_edit(source: bytes, site: Site, keeper: str, key: str) -> Edit:
    """Replace an assertion by a call of `keeper` that reports the compared value. The expected value is removed."""
    assert site.statement is not None
    start, end = site.compared
    return site.statement, f'{keeper}("{key}", ('.encode() + source[start:end] + b"))"


def reporting_edit(source: bytes, site: Site, keeper: str, key: str) -> Edit:
    """Make an assertion report the value that it compares, and compare it as before."""
    start, end = site.compared
    return site.compared, f' {keeper}("{key}", ('.encode() + source[start:end] + b")) "


def compose(
    file: str, source: bytes, groups: Mapping[TestFunction, list[bytes]], edits_outside: Iterable[Edit] = ()
) -> bytes:
    """Replace each function by its copies and apply the edits outside. Raises ValueError if that is impossible."""
    edits = list(edits_outside)
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
        raise ValueError(f"line {error.lineno} of the rewritten file: {error.msg}") from error
    return changed


def _edited(source: bytes, start: int, end: int, edits: Iterable[Edit]) -> bytes:
    pieces, place = [], start
    for (first, last), text in sorted(edits):
        pieces += [source[place:first], text]
        place = last
    return b"".join([*pieces, source[place:end]])
