"""Parses the logs of test runners, which have one test name and its outcome per line.

The code under test writes these logs and could forge them, so a verdict based on them is marked as open. A test that is
reported twice gets the worse outcome. Invariant: parsing takes time in proportion to the log's size, whatever is in it,
so no expression here may try many ways to split a run of characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_WORST = (FAILED, SKIPPED, PASSED)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LONGEST_LINE = 10_000
"""A line is cut to this many bytes: no runner prints a longer name."""
MOST_LINES, MOST_TESTS = 400_000, 100_000
_Reader = Callable[[Iterable[str]], Iterator[tuple[str, str]]]

_DJANGO = re.compile(r"(.+?) \.\.\. +(ok|OK|skipped.*|FAIL|ERROR|expected failure)$")
_DJANGO_HEAD = re.compile(r"(FAIL|ERROR): (.+)")
_SYMPY = re.compile(r"\s*(test_\w+) (ok|F|E|f|s)(?: +\[.*\])?$")
_GO = re.compile(r"\s*--- (PASS|FAIL|SKIP): (\S+)")
_CARGO = re.compile(r"test (\S.*?) \.\.\. (ok|FAILED|ignored)")
_TAP = re.compile(r"\s*(not ok|ok) \d+(?: -)? (.+)")
_DIRECTIVE = re.compile(r"\s# (SKIP|TODO)")
_TICKS = re.compile(r"\s*(✓|✔|√|✕|✗|✘|×|○)\s+(.+?)(?: \(\d+(?:\.\d+)? ?m?s\)| \d+ms)?$")


class LogTooLong(Exception):
    """A log has more than MOST_LINES lines or MOST_TESTS tests."""


def _django(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    begun = ""
    for line in map(str.strip, lines):
        if found := _DJANGO.match(line):
            good = found[2].lower() == "ok" or found[2] == "expected failure"
            yield found[1], PASSED if good else SKIPPED if found[2].startswith("skipped") else FAILED
            begun = ""
        elif found := _DJANGO_HEAD.fullmatch(line):
            yield found[2], FAILED
        elif begun and line == "ok":
            yield begun, PASSED  # The test printed lines between its name and this "ok".
            begun = ""
        elif " ... " in line:
            begun = line.partition(" ... ")[0]


def _of(pattern: re.Pattern[str], name: int, word: int, outcomes: dict[str, str]) -> _Reader:
    def read(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
        for line in lines:
            if found := pattern.match(line.rstrip()):
                yield found[name], outcomes.get(found[word], FAILED)

    return read


def _tap(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if found := _TAP.match(line.rstrip()):
            said = _DIRECTIVE.search(found[2])
            name = found[2][: said.start()].rstrip() if said else found[2]
            yield name, SKIPPED if said and said[1] == "SKIP" else PASSED if found[1] == "ok" else FAILED


_sympy = _of(_SYMPY, 1, 2, {"ok": PASSED, "f": PASSED, "s": SKIPPED})
_go = _of(_GO, 2, 1, {"PASS": PASSED, "SKIP": SKIPPED})
_cargo = _of(_CARGO, 1, 2, {"ok": PASSED, "ignored": SKIPPED})
_ticks = _of(_TICKS, 2, 1, {"✓": PASSED, "✔": PASSED, "√": PASSED, "○": SKIPPED})

PARSERS: dict[str, _Reader] = {
    "parse_log_django": _django,
    "parse_log_unittest": _django,
    "parse_log_sympy": _sympy,
    "parse_log_gotest": _go,
    "parse_log_cargo": _cargo,
    "parse_log_tap": _tap,
    "parse_log_jest": _ticks,
    "parse_log_vitest": _ticks,
}
"""Parsers by their names in SWE-bench rows, for formats that can be parsed in one pass over the lines."""


def read_log(parser: str, log: bytes) -> dict[str, str]:
    """Return the outcome of each test in a log. `parser` is a key of `PARSERS`. Raises LogTooLong."""
    found: dict[str, str] = {}
    for test, outcome in PARSERS[parser](_lines(log)):
        found[test] = min(found.get(test, PASSED), outcome, key=_WORST.index)
        if len(found) > MOST_TESTS:
            raise LogTooLong
    return found


def _lines(log: bytes) -> Iterator[str]:
    """Yield one line after the other, without colours. A list of all lines, or the whole log as text, can take many
    times the memory of the log."""
    if log.count(b"\n") >= MOST_LINES:
        raise LogTooLong
    start, end = 0, -1
    while end < len(log):
        end = log.find(b"\n", start)
        end = len(log) if end < 0 else end
        yield _COLOURS.sub("", log[start : min(end, start + LONGEST_LINE)].decode("utf-8", "replace"))
        start = end + 1
