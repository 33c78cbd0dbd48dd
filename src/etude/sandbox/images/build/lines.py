"""Splits a Dockerfile into logical lines: continuation lines are joined, comments removed, and heredocs attached to
their line.

Every logical line keeps the number of its first physical line, for error messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from etude.sandbox.contract import ImageError
from etude.sandbox.images.build.variables import expand, split_words

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+)")
"""Matches a parser directive, such as "# escape=`". White space at the line's end must have been removed."""
_SYNTAX = re.compile(r"(docker\.io/)?docker/dockerfile:1(\.\d+){0,2}")
_OPENING = re.compile(r"\d*<<(-?)([^<-][^<]*)")
_WITH_HEREDOCS = {"RUN", "COPY", "ADD"}


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A heredoc: the lines between <<NAME and the line NAME."""

    name: str
    content: str
    literal: bool = False
    """Whether NAME was quoted where the heredoc was opened. Variables in such a heredoc are not expanded."""
    indented: bool = False
    """Whether the heredoc was opened by <<-, so that leading tabs of its lines are removed."""

    @property
    def text(self) -> str:
        return re.sub(r"^\t+", "", self.content, flags=re.MULTILINE) if self.indented else self.content


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line of a Dockerfile, which holds one instruction."""

    number: int
    name: str
    """The instruction's name, in upper case."""
    rest: str
    heredocs: tuple[Heredoc, ...] = ()


def logical_lines(text: str, file: str) -> tuple[str, list[Line]]:
    if "\0" in text:
        raise ImageError(f"{file}:{text[: text.index(chr(0))].count(chr(10)) + 1}: a zero byte; is this a text file?")
    reader = _Reader(file, re.split(r"\r?\n", text.removeprefix("\ufeff")))
    reader.read_directives()
    lines = []
    while reader.at < len(reader.lines):
        if line := reader.read_line():
            lines.append(line)
    return reader.escape, lines


class _Reader:
    """Reads a Dockerfile's logical lines. `at` is the index of the next physical line."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file, self.lines, self.at, self.escape = file, lines, 0, "\\"

    def read_directives(self) -> None:
        """Read the parser directives at the top of the file, up to the first line that is not a directive."""
        seen = set()
        while self.at < len(self.lines) and (match := _DIRECTIVE.fullmatch(self.lines[self.at].strip())):
            name, value = match[1].lower(), match[2]
            if name not in ("syntax", "escape", "check"):
                return
            self.at += 1
            if name in seen:
                raise self._wrong(self.at, f"a second '# {name}=' directive; one is allowed")
            seen.add(name)
            if name == "escape":
                if value not in ("\\", "`"):
                    raise self._wrong(self.at, f"'# escape={value}': expected \\ or `")
                self.escape = value
            if name == "syntax" and not _SYNTAX.fullmatch(value):
                raise self._wrong(self.at, f"'# syntax={value}': only docker/dockerfile:1 and 1.x are known")

    def read_line(self) -> Line | None:
        """Return the next instruction, or None for an empty line or a comment."""
        number, joined = self.at + 1, self._join().strip()
        if not joined:
            return None
        name, _, rest = re.sub(r"\s+", " ", joined, count=1).partition(" ")
        name = name.upper()
        openings = self._openings(number, rest) if name in _WITH_HEREDOCS else []
        return Line(number, name, rest, tuple(self._read_heredoc(number, *opening) for opening in openings))

    def _join(self) -> str:
        """Read the physical lines of one logical line and join them, skipping comments and empty lines. The logical
        line ends at the first line without an escape character at its end."""
        mark = re.escape(self.escape)
        continued = re.compile(rf"(?:^|(?<=[^{mark}])){mark}[ \t]*$")
        parts: list[str] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if line.lstrip().startswith("#") or (parts and not line.strip()):
                if parts:
                    continue
                break
            parts.append(continued.sub("", line))
            if parts[-1] == line:
                break
        return "".join(parts)

    def _openings(self, number: int, rest: str) -> list[tuple[str, bool, bool]]:
        """Return (name, whether the name is quoted, whether <<- opens it) of each heredoc that a line opens. `rest` is
        the line's text after the instruction's name, `number` is the line's number, for errors."""
        try:
            words = split_words(rest, self.escape) if "<<" in rest else []
        except ValueError:
            return []  # Only a shell can parse these quotes. Such a line opens no heredoc.
        found = []
        for word in words:
            if match := _OPENING.fullmatch(word):
                try:
                    name = expand(match[2].replace("$", f"{self.escape}$"), {}, self.escape)
                except ValueError as error:
                    raise self._wrong(number, f"heredoc {word}: {error}") from error
                if name:
                    found.append((name, name != match[2], bool(match[1])))
        return found

    def _read_heredoc(self, opened: int, name: str, literal: bool, indented: bool) -> Heredoc:
        first = self.at
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if (line.lstrip("\t") if indented else line) == name:
                content = "".join(f"{line}\n" for line in self.lines[first : self.at - 1])
                return Heredoc(name, content, literal, indented)
        raise self._wrong(opened, f"heredoc {name}: the line {name} that would end it is missing")

    def _wrong(self, number: int, problem: str) -> ImageError:
        return ImageError(f"{self.file}:{number}: {problem}")
