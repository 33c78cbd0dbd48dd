"""Needles: lines to search an image for, because only the reference solution or the hidden tests contain them.

White space is ignored. A line becomes a needle if it is long enough to be distinctive, and occurs neither in the
workspace nor in Python's standard library, which contains the common idioms. A shorter line is joined with its
neighbours. Quoted strings are additional needles, because they survive compilation.

These rules miss a leak if the reference's new lines also occur in the standard library, for example because the fix is
an idiom. So copies of the files that the reference changes or adds are searched for such lines too (`FileVersions`).
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path, PurePosixPath
from threading import Lock

import numpy as np
import xxhash

SPACE = b" \t\r\n\f\v"
WITHIN_LINES = SPACE.replace(b"\n", b"")
LEAST = 24
"""Bytes of the shortest line to search for, without white space. Two programs may share a shorter line by chance."""
LEAST_QUOTED = 20
LONGEST = 160
"""Bytes of a line, without white space, that are compared at most. The rest would add no certainty."""
_MARK_COUNT = 12
"""Maximum number of lines, spread over a file, that identify its copies. A copy has at least half of them."""
_COMMENT_STARTS = (b"#", b"//", b"*", b"/*", b'"""', b"<!--")
"""Starts of comment lines. Comments identify no file, because many files share the same ones, such as licence texts."""
_SOLUTION, _TESTS = 24, 16
"""Maximum number of needles (texts to search an image for) from the solution, and from the hidden tests. They are taken
from the files in turn, longest lines first. A few lines per file are enough, because a leaked file usually contains all
of them."""
_IMPORT = re.compile(r"\s*(?:(?:import|from|#include|use|using|package)\b|(?:const|let|var)\b.*\brequire\()")
"""Matches import lines. They only name other people's code, so they do not identify a file."""
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)+)\"|'((?:[^'\\]|\\.)+)'")


@dataclass(frozen=True, slots=True)
class Needle:
    """A text whose presence in an image reveals a part of the solution or of the hidden tests."""

    text: bytes
    """The text to search for, without white space."""
    of_tests: bool
    shown: str
    """File, line number and text of the needle, for people to read."""
    whole: bool = True
    """Whether the text is one whole line, or the first `LONGEST` bytes of one."""


@dataclass(frozen=True, slots=True)
class FileVersions:
    """Recognises other versions of a file that the reference changes or adds, and finds the solution in them."""

    name: str
    """What the path of every version of the file ends in: the file's name or, for `__init__.py`, the folder and the
    name."""
    size: int
    """Size of the file in bytes before the reference changes it; for an added file, the size of the added text."""
    marks: tuple[bytes, ...]
    """Distinctive lines of the file, without white space. A text with at least half of them is a version of the
    file."""
    needles: tuple[Needle, ...]
    """Texts from the lines that the reference adds to this file. Texts that Python's standard library also contains are
    included."""

    def matches_path(self, path: str) -> bool:
        return re.split("[/!]", path)[-1] == self.name or path.endswith(f"/{self.name}")

    def leaked_in(self, text: bytes) -> Needle | None:
        """Return the first of the needles (texts from the solution's lines) that `text`, a file without white space,
        contains. Return None if it contains none, or is no version of this file."""
        if 2 * sum(mark in text for mark in self.marks) < len(self.marks):
            return None
        return next((needle for needle in self.needles if needle.text in text), None)


@dataclass(frozen=True, slots=True)
class Needles:
    """The texts whose presence in an image reveals a task's solution or hidden tests."""

    items: tuple[Needle, ...]
    stems: frozenset[str] = frozenset()
    """Names, without suffix, of the Python and Cython files that the solution changes, except `__init__`. Their
    bytecode is recognised by these names."""
    file_versions: tuple[FileVersions, ...] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    added: bool


def without_whitespace(data: bytes) -> bytes:
    return data.translate(None, SPACE)


def needles_of(diff: str, tests: Mapping[str, bytes], pristine: Mapping[str, bytes]) -> Needles:
    """Return the texts whose presence in an image reveals the task's solution or hidden tests. `diff` is the reference
    solution; it need not apply to `pristine`, the workspace's files. `tests` are the hidden test files."""
    known = b"\n".join(without_whitespace(data) for data in pristine.values())

    def new(found: Iterable[Needle]) -> list[Needle]:
        return [needle for needle in found if needle.text not in known]

    def distinct(found: Iterable[Needle]) -> list[Needle]:
        return [needle for needle in found if not _library().contains(needle)]

    hunks = dict(_changed_files(diff))
    changed = {path: new(_of_hunks(path, found)) for path, found in hunks.items()}
    # A file that the reference adds is recognised by its own lines.
    known_by = {path: pristine[path] if path in pristine else _new_side(found) for path, found in hunks.items()}
    hidden = [distinct(new(_of_file(path, data))) for path, data in sorted(tests.items())]
    return Needles(
        (*_longest(map(distinct, changed.values()), _SOLUTION), *_longest(hidden, _TESTS)),
        frozenset(PurePosixPath(path).stem for path in changed if path.endswith((".py", ".pyx"))) - {"__init__"},
        tuple(_file_versions(changed, known_by)),
    )


def _file_versions(changed: Mapping[str, Sequence[Needle]], files: Mapping[str, bytes]) -> Iterator[FileVersions]:
    for path, needles in changed.items():
        lines = list(dict.fromkeys(without_whitespace(line) for line in files[path].split(b"\n")))
        distinctive = [line for line in lines if len(line) >= LEAST and not line.startswith(_COMMENT_STARTS)]
        if len(distinctive) >= 2 and needles:
            step = max(1, len(distinctive) // _MARK_COUNT)
            folder, _, name = path.rpartition("/")
            if name == "__init__.py":  # Every package has one.
                name = f"{folder.rpartition('/')[2]}/{name}".lstrip("/")
            yield FileVersions(name, len(files[path]), tuple(distinctive[::step][:_MARK_COUNT]), tuple(needles))


def _changed_files(diff: str) -> Iterator[tuple[str, list[list[_Line]]]]:
    """Yield the path and the new side of the hunks (context and added lines) of each file in a diff."""
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


def _new_side(hunks: Iterable[Sequence[_Line]]) -> bytes:
    return "".join(f"{line.text}\n" for hunk in hunks for line in hunk).encode("utf-8", "surrogateescape")


def _of_hunks(path: str, hunks: Iterable[Sequence[_Line]]) -> Iterator[Needle]:
    for hunk in hunks:
        for index, line in enumerate(hunk):
            if not line.added:
                continue
            text = _joined_with_neighbours(hunk, index)
            shown = f"{path}:{line.number}: {line.text.strip()[:80]}"
            if len(text) >= LEAST and not _IMPORT.match(line.text):
                yield Needle(
                    text[:LONGEST], False, shown, whole=text == without_whitespace(line.text.encode("utf-8", "replace"))
                )
            for quoted in _quoted(line.text):
                yield Needle(quoted, False, shown, whole=False)


def _joined_with_neighbours(hunk: Sequence[_Line], index: int) -> bytes:
    """Return a line without white space, joined with its neighbours in the hunk until it has `LEAST` bytes."""
    first, last = index, index + 1
    while True:
        text = b"".join(without_whitespace(line.text.encode("utf-8", "surrogateescape")) for line in hunk[first:last])
        if len(text) >= LEAST or (first == 0 and last == len(hunk)):
            return text
        first, last = max(0, first - 1), min(len(hunk), last + 1)


def _quoted(line: str) -> Iterator[bytes]:
    for found in _QUOTED.finditer(line):
        raw = (found[1] or found[2]).encode("utf-8", "surrogateescape")
        if b"\\" not in raw and len(without_whitespace(raw)) >= LEAST_QUOTED:
            yield without_whitespace(raw)[:LONGEST]


def _of_file(path: str, data: bytes) -> Iterator[Needle]:
    if b"\0" in data:
        return
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        text = without_whitespace(line.encode("utf-8", "surrogateescape"))
        if len(text) >= LEAST and not _IMPORT.match(line):
            yield Needle(text[:LONGEST], True, f"{path}:{number}: {line.strip()[:80]}")


def _longest(files: Iterable[list[Needle]], most: int) -> list[Needle]:
    """Select at most `most` of the needles that were found in several files: the longest of each file first, then the
    second longest of each, and so on."""
    ordered = (sorted(found, key=lambda needle: -len(needle.text)) for found in files)
    turns = chain.from_iterable(zip_longest(*ordered))
    unique = {needle.text: needle for needle in turns if needle is not None}
    return list(unique.values())[:most]


class _Library:
    """The text of Python's standard library without white space (about 8 MB), and a hash of each line."""

    def __init__(self) -> None:
        files = [path.read_bytes() for path in sorted(_modules(sysconfig.get_path("stdlib")))]
        lines = [line[:LONGEST] for data in files for line in data.translate(None, WITHIN_LINES).split(b"\n")]
        self._text = b"".join(lines)
        numbers = (xxhash.xxh3_64_intdigest(line) for line in set(lines))
        self._lines = np.unique(np.fromiter(numbers, dtype=np.uint64))

    def contains(self, needle: Needle) -> bool:
        """Return whether the standard library contains the needle's text. A whole line is looked up by its hash; any
        other text is searched for in the library's text."""
        if not needle.whole:
            return needle.text in self._text
        number = np.uint64(xxhash.xxh3_64_intdigest(needle.text))
        rank = int(np.searchsorted(self._lines, number))
        return rank < len(self._lines) and bool(self._lines[rank] == number)


def _modules(top: str) -> Iterator[Path]:
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    for folder, below, names in os.walk(top):
        below[:] = set(below) - left_out
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


_library_lock = Lock()
_cached_library = cache(_Library)


def _library() -> _Library:
    """Return the standard library. It is read once per process; concurrent threads wait for it, because reading in
    parallel would not be faster."""
    with _library_lock:
        return _cached_library()
