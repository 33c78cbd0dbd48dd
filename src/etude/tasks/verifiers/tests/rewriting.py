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
    """Write an expected value as source. Original and altered values all have this form, so that details such as quotes
    do not show which one is the original."""
    return json.dumps(value, ensure_ascii=False) if site.json else repr(value)


def rewritten_literal(function: TestFunction, literal: tuple[int, int]) -> Edit:
    """Return an edit that writes the expected value at `literal` in the form that altered values have. If it kept its
    own form, that would show which version of the test is the original."""
    site = next(site for site in function.sites if site.literal == literal)
    return literal, (site.exception or source_text(site, site.value)).encode()


def report_edit(source: bytes, site: Site, keeper: str, key: str) -> Edit:
    """Return an edit that replaces an assertion by a call of the function `keeper`, which reports the compared value
    under `key`. The expected value is removed."""
    assert site.statement is not None
    start, end = site.compared
    return site.statement, f'{keeper}("{key}", ('.encode() + source[start:end] + b"))"


def reporting_edit(source: bytes, site: Site, keeper: str, key: str) -> Edit:
    """Return an edit that makes an assertion report the value that it compares, by a call of the function `keeper` with
    `key`. The assertion compares the value as before."""
    start, end = site.compared
    return site.compared, f' {keeper}("{key}", ('.encode() + source[start:end] + b")) "


def compose(
    file: str, source: bytes, groups: Mapping[TestFunction, list[bytes]], edits_outside: Iterable[Edit] = ()
) -> bytes:
    """Return the source of a test file with each function replaced by its copies, and with `edits_outside` applied to
    the rest of the file. Raises ValueError if that is impossible."""
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
