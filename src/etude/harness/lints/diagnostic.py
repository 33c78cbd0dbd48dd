"""Diagnostic: one problem that a linter reports at a position. Its texts are single lines of bounded length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]
MESSAGE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, order=True)
class Diagnostic:
    """One problem that a linter reports. Problems are ordered by file and line."""

    path: str
    line: int
    """Line number, counting from 1; 0 if the linter reports none."""
    column: int
    """Column number from 1, in the linter's own units; 0 if the linter reports none."""
    severity: Severity = field(compare=False)
    code: str
    message: str
    linter: str

    def as_line(self) -> str:
        position = ":".join([self.path, *(str(number) for number in (self.line, self.column) if number)])
        rule = f"{self.linter} {self.code}" if self.code else self.linter
        return f"{position} {self.severity} {self.message} [{rule}]"


def one_line(text: str) -> str:
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words if len(words) <= MESSAGE_CHARACTERS else f"{words[:MESSAGE_CHARACTERS]}..."
