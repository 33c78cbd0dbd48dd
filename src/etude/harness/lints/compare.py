"""Finds the lint problems that are new after edits, even though the edits move lines.

A problem before the edits and a problem after them match under two conditions. Their linter, rule and message are
equal, apart from line numbers in the message. And their lines correspond: they are the same line of an unchanged block,
or have the same text, or are in the old and the new version of the same changed block. Each problem matches at most one
other. So a problem that only moved is never new. If one problem has become two equal ones, one of the two is new.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

from etude.harness.editing.diff import equal_ends
from etude.harness.lints.diagnostic import Diagnostic

Files: TypeAlias = Mapping[str, bytes]
Keys: TypeAlias = tuple[Callable[[Diagnostic], Hashable], Callable[[Diagnostic], Hashable]]
MOST_COMPARED = 4_000_000
"""Maximum number of line pairs to compare; a changed part with more is treated as one replaced block."""
MOST_PAIRS = 400
"""Maximum number of pairs of added and deleted files to compare for renames; beyond it, names must be equal."""
ALIKE = 0.5
"""Minimum fraction of lines that an added file must share with a deleted one to count as the renamed file."""

_LINE_NUMBERS = re.compile(r"(\blines? |:)\d+(?::\d+)?|\(\d+,\d+\)")


def unmatched(before: Sequence[Diagnostic], after: Sequence[Diagnostic], old: Files, new: Files) -> list[Diagnostic]:
    """Return the problems in `after` that correspond to none in `before`. `old` and `new` are the files before and
    after the edits."""
    names = renamed(old, new)
    left_before, left_after = list(before), list(after)
    comparisons: dict[str, Comparison] = {}

    def compared(path: str) -> Comparison:
        if path not in comparisons:
            comparisons[path] = Comparison(_lines(old.get(names.get(path, path))), _lines(new.get(path)))
        return comparisons[path]

    now_at = {was: now for now, was in names.items()}

    def place_of(problem: Diagnostic) -> str:
        return now_at.get(problem.path, problem.path)

    by_line: Keys = (
        lambda problem: ("line", problem.line),
        lambda problem: ("line", compared(problem.path).old_line(problem.line)),
    )
    by_text: Keys = (
        lambda problem: ("text", compared(place_of(problem)).old_text(problem.line)),
        lambda problem: ("text", compared(problem.path).new_text(problem.line)),
    )
    by_piece: Keys = (
        lambda problem: ("piece", compared(place_of(problem)).old_piece(problem.line) or ("before", problem)),
        lambda problem: ("piece", compared(problem.path).new_piece(problem.line) or ("after", problem)),
    )
    for of_before, of_after in (by_line, by_text, by_piece):
        waiting: defaultdict[Hashable, list[Diagnostic]] = defaultdict(list)
        for problem in sorted(left_before, reverse=True):
            waiting[place_of(problem), _kind(problem), of_before(problem)].append(problem)
        remaining = []
        for problem in sorted(left_after):
            if same := waiting[problem.path, _kind(problem), of_after(problem)]:
                same.pop()
            else:
                remaining.append(problem)
        left_before, left_after = [problem for kept in waiting.values() for problem in kept], remaining
    return left_after


def _kind(problem: Diagnostic) -> tuple[str, str, str]:
    """Return linter, rule and message without line numbers. Two problems can only match if these are equal."""
    return problem.linter, problem.code, _LINE_NUMBERS.sub(r"\1#", problem.message)


class Comparison:
    """Line-by-line comparison of a file's contents before and after the edits. Line numbers begin at 1."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self._old, self._new = old, new
        self._was: dict[int, int] = {}
        self._old_piece: dict[int, int] = {}
        self._new_piece: dict[int, int] = {}
        for number, (tag, first, last, begin, end) in enumerate(_opcodes(old, new), 1):
            if tag == "equal":
                self._was.update(zip(range(begin + 1, end + 1), range(first + 1, last + 1), strict=True))
            else:
                self._old_piece.update(dict.fromkeys(range(first + 1, last + 1), number))
                self._new_piece.update(dict.fromkeys(range(begin + 1, end + 1), number))

    def old_line(self, line: int) -> int | None:
        """Return the old number of the unchanged line whose number is now `line`; None for a new or changed line. 0
        stands for no line and stays 0."""
        return self._was.get(line) if line else 0

    def old_piece(self, line: int) -> int | None:
        """Return the number of the changed block that contains a line of the old text; None for an unchanged line."""
        return self._old_piece.get(line)

    def new_piece(self, line: int) -> int | None:
        return self._new_piece.get(line)

    def old_text(self, line: int) -> str:
        return _text(self._old, line)

    def new_text(self, line: int) -> str:
        return _text(self._new, line)


def _text(lines: Sequence[str], line: int) -> str:
    """Return a line's text without indentation, which may change when a block is moved; "" if there is no such line."""
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


Opcode: TypeAlias = tuple[str, int, int, int, int]


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[Opcode]:
    head, tail = equal_ends(old, new)
    first, last = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(first) * len(last) > MOST_COMPARED:
        middle: list[Opcode] = [("replace", 0, len(first), 0, len(last))]
    else:
        middle = [*difflib.SequenceMatcher(None, first, last).get_opcodes()]
    moved = [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in middle]
    ends: list[Opcode] = [("equal", len(old) - tail, len(old), len(new) - tail, len(new))] if tail else []
    return [("equal", 0, head, 0, head), *moved, *ends]


def renamed(old: Files, new: Files) -> dict[str, str]:
    """Map each added file that was probably renamed to the deleted file that it is most similar to."""
    gone = {path: Counter(_lines(old[path])) for path in old.keys() - new.keys()}
    come = sorted(new.keys() - old.keys())
    few = len(gone) * len(come) <= MOST_PAIRS
    names: dict[str, str] = {}
    for path in come:
        lines = Counter(_lines(new[path]))
        share = {
            other: _alike(lines, counted)
            for other, counted in gone.items()
            if few or other.rpartition("/")[2] == path.rpartition("/")[2]
        }
        best = max(sorted(share), key=lambda other: share[other], default=None)
        if best is not None and share[best] >= ALIKE:
            names[path] = best
            del gone[best]
    return names


def _alike(one: Counter[str], other: Counter[str]) -> float:
    most = max(one.total(), other.total())
    return (one & other).total() / most if most else 0.0


def _lines(data: bytes | None) -> list[str]:
    return data.decode("utf-8", "replace").split("\n") if data else []


def sorted_problems(problems: Iterable[Diagnostic]) -> list[Diagnostic]:
    return sorted(set(problems))
