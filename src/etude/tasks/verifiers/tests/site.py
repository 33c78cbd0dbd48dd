"""A site is one assertion in a test that expects a value or an exception, with its position in the source."""

from __future__ import annotations

from dataclasses import dataclass

ByteSpan = tuple[int, int]
"""Start and end of a range of a source file, in bytes."""
Edit = tuple[ByteSpan, bytes]
"""A byte range of a source file, and the text to replace it with."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    literal: ByteSpan | None
    """Position of the assertion's expected value in the source. None if a grading cannot write another value there."""
    values: tuple[object, ...]
    """A single value, or one for each iteration of the surrounding loops or row of a parametrised test."""
    exception: str = ""
    """Name of the exception that the assertion expects; empty if it expects a value."""
    statement: ByteSpan | None = None
    """The whole statement of an equality assertion, whose comparison can be made outside the box."""
    compared: ByteSpan = (0, 0)
    """Position of the expression that the assertion compares with the expected value."""
    given: frozenset[str] = frozenset()
    """Reprs of values that the compared expression contains too, so that code can return them unsolved."""
    json: bool = False
    """Whether the expected value is written in the source as JSON (in JavaScript tests) rather than as Python."""
    blanks: tuple[Edit, ...] = ()
    """Edits elsewhere in the file that remove what reveals the value, applied with that of the assertion."""
    rows: tuple[frozenset[str], ...] = ()
    """The names that the runner may give to each row of a parametrised test, in the order of `values`."""
    renamed: bool = False
    """Whether withholding also renames rows to row1, row2 and so on, because their names may reveal values."""

    @property
    def value(self) -> object:
        return self.values[0]

    def row_of(self, row_id: str) -> int | None:
        """Return the index of the row that `row_id` names. Return None if it can name no row, or several."""
        found = [row for row, names in enumerate(self.rows) if row_id in names]
        return found[0] if len(found) == 1 else None
