"""What to look for: lines that the reference adds, or that the hidden tests hold, and that nothing else says.

White space does not count. A line is looked for if it is long enough to be nobody's but the solution's, and is neither
in the workspace nor in Python's own library, which says what programs say anyway. A shorter one is looked for together
with its neighbours. Quoted texts are looked for alone too: they outlive compilation.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path, PurePosixPath

import numpy as np
import xxhash

SPACE = b" \t\r\n\f\v"
LEAST = 24
"""Bytes of a line without white space, below which two programs may well agree by chance."""
LEAST_QUOTED = 20
_MOST = 160
"""Of a line, what is compared: the rest of a very long one adds no certainty."""
_SOLUTION, _TESTS = 24, 16
"""How many are looked for: the longest of each file in turn. Where one is, others are."""
_IMPORT = re.compile(r"\s*(?:(?:import|from|#include|use|using|package)\b|(?:const|let|var)\b.*\brequire\()")
"""Names what others have written: no line of anybody's own."""
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)+)\"|'((?:[^'\\]|\\.)+)'")


@dataclass(frozen=True, slots=True)
class Needle:
    text: bytes
    """Without white space."""
    of_tests: bool
    shown: str
    """Where it is from, and what it says, for people."""
    whole: bool = True
    """One line, and neither a part of one nor several."""


@dataclass(frozen=True, slots=True)
class Needles:
    items: tuple[Needle, ...]
    stems: frozenset[str] = frozenset()
    """Names, without their ending, of the Python files that the reference changes: bytecode is called after them."""


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    added: bool


def squeezed(data: bytes) -> bytes:
    return data.translate(None, SPACE)


def needles_of(diff: str, tests: Mapping[str, bytes], pristine: Mapping[str, bytes]) -> Needles:
    """`diff` is the reference's; it need not be one that applies."""
    known = b"\n".join(squeezed(data) for data in pristine.values())

    def distinct(found: Iterable[Needle]) -> list[Needle]:
        return [needle for needle in found if needle.text not in known and not _library().says(needle)]

    changed = list(_changed_files(diff))
    solution = [distinct(_of_hunks(path, hunks)) for path, hunks in changed]
    hidden = [distinct(_of_file(path, data)) for path, data in sorted(tests.items())]
    stems = {PurePosixPath(path).stem for path, _ in changed if path.endswith((".py", ".pyx"))} - {"__init__"}
    return Needles((*_longest(solution, _SOLUTION), *_longest(hidden, _TESTS)), frozenset(stems))


def _changed_files(diff: str) -> Iterator[tuple[str, list[list[_Line]]]]:
    """Each file with the new side of its hunks."""
    path, hunks, number = "", list[list[_Line]](), 0
    for line in diff.split("\n"):
        if line.startswith("+++ "):
            if path:
                yield path, hunks
            path, hunks = line[4:].split("\t")[0].removeprefix("b/"), []
        elif found := re.match(r"@@ -\S+ \+(\d+)", line):
            hunks.append([])
            number = int(found[1])
        elif hunks and line[:1] in ("+", " "):
            hunks[-1].append(_Line(number, line[1:], line[0] == "+"))
            number += 1
        elif line.startswith("diff --git "):
            if path:
                yield path, hunks
            path, hunks = "", []
    if path:
        yield path, hunks


def _of_hunks(path: str, hunks: Iterable[Sequence[_Line]]) -> Iterator[Needle]:
    for hunk in hunks:
        for index, line in enumerate(hunk):
            if not line.added:
                continue
            text = _grown(hunk, index)
            shown = f"{path}:{line.number}: {line.text.strip()[:80]}"
            if len(text) >= LEAST and not _IMPORT.match(line.text):
                yield Needle(text[:_MOST], False, shown, whole=text == squeezed(line.text.encode("utf-8", "replace")))
            for quoted in _quoted(line.text):
                yield Needle(quoted, False, shown, whole=False)


def _grown(hunk: Sequence[_Line], index: int) -> bytes:
    """A line without white space; with those around it, as many as it takes."""
    first, last = index, index + 1
    while True:
        text = b"".join(squeezed(line.text.encode("utf-8", "surrogateescape")) for line in hunk[first:last])
        if len(text) >= LEAST or (first == 0 and last == len(hunk)):
            return text
        first, last = max(0, first - 1), min(len(hunk), last + 1)


def _quoted(line: str) -> Iterator[bytes]:
    for found in _QUOTED.finditer(line):
        raw = (found[1] or found[2]).encode("utf-8", "surrogateescape")
        if b"\\" not in raw and len(squeezed(raw)) >= LEAST_QUOTED:
            yield squeezed(raw)[:_MOST]


def _of_file(path: str, data: bytes) -> Iterator[Needle]:
    if b"\0" in data:
        return
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        text = squeezed(line.encode("utf-8", "surrogateescape"))
        if len(text) >= LEAST and not _IMPORT.match(line):
            yield Needle(text[:_MOST], True, f"{path}:{number}: {line.strip()[:80]}")


def _longest(files: Iterable[list[Needle]], most: int) -> list[Needle]:
    """The longest of each file, file after file."""
    ordered = (sorted(found, key=lambda needle: -len(needle.text)) for found in files)
    turns = chain.from_iterable(zip_longest(*ordered))
    unique = {needle.text: needle for needle in turns if needle is not None}
    return list(unique.values())[:most]


class _Library:
    """Python's own, without white space: about 8 MB of text, and a number for each of its lines."""

    def __init__(self) -> None:
        top = Path(sysconfig.get_path("stdlib"))
        left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
        files = sorted(path for path in top.rglob("*.py") if left_out.isdisjoint(path.relative_to(top).parts))
        lines = [squeezed(line)[:_MOST] for path in files for line in path.read_bytes().split(b"\n")]
        self._text = b"".join(lines)
        self._lines = np.unique(np.array([xxhash.xxh3_64_intdigest(line) for line in set(lines)], dtype=np.uint64))

    def says(self, needle: Needle) -> bool:
        """Of a whole line this is known at once; else all the text is looked through."""
        if not needle.whole:
            return needle.text in self._text
        number = np.uint64(xxhash.xxh3_64_intdigest(needle.text))
        rank = int(np.searchsorted(self._lines, number))
        return rank < len(self._lines) and bool(self._lines[rank] == number)


@cache
def _library() -> _Library:
    return _Library()
