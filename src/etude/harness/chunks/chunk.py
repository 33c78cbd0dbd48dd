"""Chunk: lines of one file that belong together; and the rule that splits a file into chunks.

Every line of a text file is in exactly one chunk, in order, whatever the file contains; a binary or huge file has no
chunks. With a grammar, a chunk is a definition, or what is left of one after the definitions inside it are taken out.
Without a grammar, and outside definitions, paragraphs are grouped by blank lines and indentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from etude.harness.chunks.grammars import Definition, definitions
from etude.harness.editing.diff import as_text

MAX_FILE_BYTES = 500_000
"""A larger file has no chunks: it is generated, or data."""
LONGEST = 80
"""Most lines of a chunk; longer ones are split."""
PARAGRAPHS = 40
"""Most lines of a group of paragraphs outside definitions."""

_NAMED = re.compile(
    r"(?:^|\s)(?:def|class|func|function|fn|struct|enum|trait|impl|interface|module|namespace|sub|procedure)\s+"
    r"(?:\([^)]*\)\s*)?([A-Za-z_][\w.:]*)"
)

_CLOSES = re.compile(r"[\s)}\];,]*(?:end)?\s*")


@dataclass(frozen=True, slots=True)
class Chunk:
    path: str
    first: int
    """First line, from 1."""
    last: int
    name: str
    """Qualified name of the definition; empty outside definitions."""
    kind: str
    """"function", "class" or "text"."""
    text: str


def chunks_of(path: str, data: bytes) -> list[Chunk]:
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
    """For each line, the index of its innermost definition, or -1. A short function keeps those inside it."""
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
    """Runs of lines with the same owner. Blank lines and those of closing brackets stay with what precedes them."""
    runs: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if runs and (owner[number] == owner[runs[-1][0]] or _CLOSES.fullmatch(line)):
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _split(lines: list[str], first: int, last: int, longest: int) -> list[tuple[int, int]]:
    """Split lines into pieces of at most `longest` lines. A cut is best after a blank line, then before a line with
    little indentation, then late."""
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
    """The name of the first line that looks like the head of a definition, for when there is no grammar."""
    return next((match[1] for line in piece if len(line) < 500 and (match := _NAMED.search(line))), "")
