"""Parsers for linter output, one function per output format. Each returns findings or raises `Unreadable`.

Linter output is untrusted: types are checked, and the size of numbers and texts is limited. Paths are returned as
printed; the caller resolves them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from etude.harness.lints.diagnostic import Severity, one_line


class Unreadable(Exception):
    """A linter's output does not have the expected form."""


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    """Path as printed; empty if the linter printed none."""
    line: int
    column: int
    severity: Severity
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class LinterOutput:
    stdout: str
    stderr: str
    pattern: str = ""
    severity: Severity = "error"


Parser: TypeAlias = Callable[[LinterOutput], list[Finding]]
T = TypeVar("T")


def _read(kind: type[T], text: str) -> T:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise Unreadable(one_line(str(error.errors(include_url=False, include_input=False)[0]["msg"]))) from error


def _number(text: str | None) -> int:
    # Longer numbers are not line numbers, and Python refuses to parse very long ones.
    return int(text) if text and len(text) < 10 else 0


def lines(said: LinterOutput) -> list[Finding]:
    """Parse output with one problem per line. Lines that do not match the linter's pattern are skipped."""
    shape = re.compile(said.pattern)
    found = []
    for line in said.stdout.split("\n"):
        if (match := shape.fullmatch(line.rstrip("\r"))) is None:
            continue
        group = match.groupdict()
        severity = _SEVERITIES.get(group.get("severity") or "", said.severity)
        place = (group.get("path") or "", _number(group.get("line")), _number(group.get("column")))
        found.append(Finding(*place, severity, group.get("code") or "", one_line(group["message"])))
    return found


_SEVERITIES: dict[str, Severity] = {
    "error": "error",
    "error: internal compiler error": "error",
    "warning": "warning",
    "information": "note",
    "note": "note",
    "help": "note",
}


class _RuffPlace(BaseModel):
    row: int = Field(ge=0, lt=10**9)
    column: int = Field(ge=0, lt=10**9)


class _RuffLine(BaseModel):
    filename: str
    location: _RuffPlace | None = None
    code: str | None = None
    message: str


def ruff(said: LinterOutput) -> list[Finding]:
    found = []
    for line in filter(None, said.stdout.split("\n")):
        entry = _read(_RuffLine, line)
        code = entry.code or "invalid-syntax"
        # Older versions report syntax errors without a code. All other problems have one.
        severity: Severity = "error" if code == "invalid-syntax" or code.startswith("E9") else "warning"
        place = entry.location or _RuffPlace(row=0, column=0)
        found.append(Finding(entry.filename, place.row, place.column, severity, code, one_line(entry.message)))
    return found


class _PyrightPlace(BaseModel):
    line: int = Field(ge=0, lt=10**9)
    character: int = Field(ge=0, lt=10**9)


class _PyrightRange(BaseModel):
    start: _PyrightPlace


class _PyrightEntry(BaseModel):
    file: str = ""
    severity: str
    message: str
    range: _PyrightRange | None = None
    rule: str = ""


class _PyrightSummary(BaseModel):
    filesAnalyzed: int


class _Pyright(BaseModel):
    generalDiagnostics: list[_PyrightEntry]
    summary: _PyrightSummary


def pyright(said: LinterOutput) -> list[Finding]:
    found = []
    for entry in _read(_Pyright, said.stdout).generalDiagnostics:
        start = entry.range.start if entry.range else None
        line, column = (start.line + 1, start.character + 1) if start else (0, 0)
        severity = _SEVERITIES.get(entry.severity, "error")
        found.append(Finding(entry.file, line, column, severity, entry.rule, one_line(entry.message)))
    return found


class _EslintMessage(BaseModel):
    ruleId: str | None = None
    severity: int
    message: str
    line: int | None = Field(default=None, ge=0, lt=10**9)
    column: int | None = Field(default=None, ge=0, lt=10**9)


class _EslintFile(BaseModel):
    filePath: str
    messages: list[_EslintMessage]


def eslint(said: LinterOutput) -> list[Finding]:
    found = []
    for file in _read(list[_EslintFile], said.stdout):
        for entry in file.messages:
            if entry.ruleId is None and entry.line is None and entry.severity == 1:
                continue  # a file that is ignored by the configuration is not a problem
            severity: Severity = "error" if entry.severity == 2 else "warning"
            place = (file.filePath, entry.line or 0, entry.column or 0)
            found.append(Finding(*place, severity, entry.ruleId or "", one_line(entry.message)))
    return found


class _VetEntry(BaseModel):
    posn: str
    message: str


_POSITION = re.compile(r"(?P<path>[^\n]+?):(?P<line>\d+)(?::(?P<column>\d+))?")
_VET_LINE = re.compile(rf"(?:vet: )?{_POSITION.pattern}: (?P<message>.*)")


def go_vet(said: LinterOutput) -> list[Finding]:
    """Parse the output of `go vet -json`: one JSON object per package, which older versions print to stderr. Compile
    errors are plain lines."""
    found = []
    for text in (said.stdout, said.stderr):
        for block in _blocks(text):
            if not block.startswith("{"):
                if match := _VET_LINE.fullmatch(block):
                    found.append(_at(match, "", match["message"]))
                continue
            for analyzers in _read(dict[str, dict[str, list[_VetEntry] | dict[str, str]]], block).values():
                for name, entries in analyzers.items():
                    for entry in entries if isinstance(entries, list) else []:
                        if (match := _POSITION.fullmatch(entry.posn)) is None:
                            raise Unreadable(one_line(f"no position: {entry.posn}"))
                        found.append(_at(match, name, entry.message))
    return found


def _at(match: re.Match[str], code: str, message: str) -> Finding:
    place = (match["path"], _number(match["line"]), _number(match["column"]))
    return Finding(*place, "warning" if code else "error", code, one_line(message))


def _blocks(text: str) -> Iterator[str]:
    """Yield each JSON object as one text, and each line between objects. Objects begin and end at a line's start."""
    block: list[str] = []
    for line in text.split("\n"):
        if block or line.startswith("{"):
            block.append(line)
            if line.rstrip() in ("}", "{}"):
                yield "\n".join(block)
                block = []
        else:
            yield line
    if block:
        raise Unreadable("an object without an end")


class _CargoSpan(BaseModel):
    file_name: str
    line_start: int = Field(ge=0, lt=10**9)
    column_start: int = Field(ge=0, lt=10**9)
    is_primary: bool = False


class _CargoCode(BaseModel):
    code: str


class _CargoMessage(BaseModel):
    level: str
    message: str
    code: _CargoCode | None = None
    spans: list[_CargoSpan] = []


class _CargoLine(BaseModel):
    reason: str
    message: _CargoMessage | None = None


def cargo(said: LinterOutput) -> list[Finding]:
    found = []
    for line in filter(None, said.stdout.split("\n")):
        # The project's build scripts may print to stdout as well.
        if not line.startswith('{"reason"'):
            continue
        entry = _read(_CargoLine, line)
        words = entry.message
        if entry.reason != "compiler-message" or words is None or words.level not in _SEVERITIES:
            continue
        if not words.spans:
            continue  # totals and hints, such as "3 warnings emitted"
        span = next((span for span in words.spans if span.is_primary), words.spans[0])
        code = words.code.code if words.code else ""
        place = (span.file_name, span.line_start, span.column_start)
        found.append(Finding(*place, _SEVERITIES[words.level], code, one_line(words.message)))
    return found


PARSERS: dict[str, Parser] = {
    "lines": lines,
    "ruff": ruff,
    "pyright": pyright,
    "eslint": eslint,
    "go_vet": go_vet,
    "cargo": cargo,
}
