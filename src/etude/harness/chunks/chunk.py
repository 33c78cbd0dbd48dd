"""Splits a file into chunks, the units of code search.

Every line of a text file is in exactly one chunk, and chunks keep the order of lines. A binary or huge file has no
chunks. If there is a grammar for the language, each definition is a chunk of its own, without the definitions inside
it; a short function keeps its inner definitions. A long definition is split into several chunks. Lines outside
definitions, and files without a grammar, are split into paragraphs by blank lines and indentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from etude.harness.chunks.grammars import Definition, definitions
from etude.harness.editing.diff import as_text

MAX_FILE_BYTES = 500_000
"""Files larger than this get no chunks, since they are usually generated code or data."""
LONGEST = 80
PARAGRAPHS = 40

_NAMED = re.compile(
    r"(?:^|\s)(?:def|class|func|function|fn|struct|enum|trait|impl|interface|module|namespace|sub|procedure)\s+"
    r"(?:\([^)]*\)\s*)?([A-Za-z_][\w.:]*)"
)

_CLOSES = re.compile(r"[\s)}\];,]*(?:end)?\s*")


@dataclass(frozen=True, slots=True)
class Chunk:
    path: str
    first: int
    """Number of the chunk's first line, counting from 1."""
    last: int
    name: str
    """Qualified name of the definition that the chunk belongs to. In a file without recognised definitions, a name
    taken from a line that looks like a definition. Otherwise empty."""
    kind: str
    """Kind of the definition that the chunk belongs to, "function" or "class"; "text" for lines outside definitions."""
    text: str


def chunks_of(path: str, data: bytes) -> list[Chunk]:
    """Split a file's contents into chunks. The suffix of `path` selects the grammar."""
    text = as_text(data) if len(data) <= MAX_FILE_BYTES else None
    if not text:
        return []
    lines = text.removesuffix("\n").split("\n")
    found = definitions(PurePosixPath(path).suffix, data)
    owner = _owners(found, len(lines))
    chunks: list[Chunk] = []
    for first, last in _runs(owner, lines):
        whose = found[owner[first]] if owner[first] >= 0 else None
        for begin, end in _split(lines, first, last, LONGEST if whose else PARAGRAPHS):
            piece = lines[begin : end + 1]
            name = whose.name if whose else _name_in(piece) if found == [] else ""
            kind = whose.kind if whose else "text"
            chunks.append(Chunk(path, begin + 1, end + 1, name, kind, "\n".join(piece)))
    return chunks


def _owners(found: list[Definition], lines: int) -> list[int]:
    """Return for each line the index in `found` of its innermost definition, or -1 outside definitions. Definitions
    nested in a function of at most LONGEST lines do not count: their lines belong to that function."""
    owner = [-1] * lines
    kept: list[Definition] = []
    for number, each in enumerate(found):
        while kept and kept[-1].last < each.first:
            kept.pop()
        if any(outer.kind == "function" and outer.last - outer.first < LONGEST for outer in kept):
            continue
        kept.append(each)
        last = min(each.last, lines - 1)
        owner[each.first : last + 1] = [number] * (last + 1 - each.first)
    return owner


def _runs(owner: list[int], lines: list[str]) -> list[tuple[int, int]]:
    """Split the lines into runs of the same owner, and return the indexes of each run's first and last line. Blank
    lines and lines of closing brackets belong to the run before them."""
    runs: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if runs and (owner[number] == owner[runs[-1][0]] or _CLOSES.fullmatch(line)):
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _split(lines: list[str], first: int, last: int, longest: int) -> list[tuple[int, int]]:
    """Split the lines from `first` to `last` into pieces of at most `longest` lines. Cuts are made preferably after a
    blank line, else before a line with little indentation, else near the end of the piece."""
    pieces: list[tuple[int, int]] = []
    while last - first + 1 > longest:
        places = range(first + longest // 2, first + longest + 1)
        cut = min(places, key=lambda place: (bool(lines[place - 1].strip()), _indent(lines[place]), -place))
        pieces.append((first, cut - 1))
        first = cut
    return [*pieces, (first, last)]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 1_000


def _name_in(piece: list[str]) -> str:
    """Return the name in the first line that looks like a definition, or ""."""
    return next((match[1] for line in piece if len(line) < 500 and (match := _NAMED.search(line))), "")
