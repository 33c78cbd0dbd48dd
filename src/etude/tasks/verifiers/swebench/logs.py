"""Parses the logs of test runners, which have one test name and its outcome per line.

The code under test writes these logs and could forge them, so a verdict based on them is marked as open. A test that is
reported twice gets the worse outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_WORST = (FAILED, SKIPPED, PASSED)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_Lines = Callable[[str], Iterator[tuple[str, str]]]

_DJANGO = re.compile(r"(.+?) \.\.\. +(ok|OK|skipped.*|FAIL|ERROR|expected failure)$")
_DJANGO_HEAD = re.compile(r"(FAIL|ERROR): (.+)")
_SYMPY = re.compile(r"\s*(test_\w+) (ok|F|E|f|s)(?: +\[.*\])?$")
_GO = re.compile(r"\s*--- (PASS|FAIL|SKIP): (\S+)")
_CARGO = re.compile(r"test (\S.*?) \.\.\. (ok|FAILED|ignored)")
_TAP = re.compile(r"\s*(not ok|ok) \d+(?: -)? (.+?)(?:\s+# (SKIP|TODO).*)?$")
_TICKS = re.compile(r"\s*(✓|✔|√|✕|✗|✘|×|○)\s+(.+?)(?: \(\d+(?:\.\d+)? ?m?s\)| \d+ms)?$")


def _django(log: str) -> Iterator[tuple[str, str]]:
    begun = ""
    for line in map(str.strip, log.split("\n")):
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


def _of(pattern: re.Pattern[str], name: int, word: int, outcomes: dict[str, str]) -> _Lines:
    def read(log: str) -> Iterator[tuple[str, str]]:
        for line in log.split("\n"):
            if found := pattern.match(line.rstrip()):
                yield found[name], outcomes.get(found[word], FAILED)

    return read


def _tap(log: str) -> Iterator[tuple[str, str]]:
    for line in log.split("\n"):
        if found := _TAP.match(line.rstrip()):
            yield found[2], SKIPPED if found[3] == "SKIP" else PASSED if found[1] == "ok" else FAILED


_sympy = _of(_SYMPY, 1, 2, {"ok": PASSED, "f": PASSED, "s": SKIPPED})
_go = _of(_GO, 2, 1, {"PASS": PASSED, "SKIP": SKIPPED})
_cargo = _of(_CARGO, 1, 2, {"ok": PASSED, "ignored": SKIPPED})
_ticks = _of(_TICKS, 2, 1, {"✓": PASSED, "✔": PASSED, "√": PASSED, "○": SKIPPED})

PARSERS: dict[str, _Lines] = {
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


def read_log(parser: str, log: str) -> dict[str, str]:
    """Return the outcome of each test in a log. `parser` is a key of `PARSERS`."""
    found: dict[str, str] = {}
    for test, outcome in PARSERS[parser](_COLOURS.sub("", log)):
        found[test] = min(found.get(test, PASSED), outcome, key=_WORST.index)
    return found
