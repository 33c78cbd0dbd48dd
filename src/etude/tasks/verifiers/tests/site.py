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
    """Position in the source of the value that the assertion expects. None if a grading cannot alter the test by
    replacing this value."""
    values: tuple[object, ...]
    """The expected value. If it changes with a loop around the assertion or with the rows of a parametrised test: the
    expected values of all iterations or rows."""
    exception: str = ""
    """Name of the exception that the assertion expects; empty if it expects a value."""
    statement: ByteSpan | None = None
    """Position of the whole statement if it asserts equality, so that its comparison can be made outside the box; None
    for other assertions."""
    compared: ByteSpan = (0, 0)
    """Position of the expression that the assertion compares with the expected value."""
    given: frozenset[str] = frozenset()
    """Reprs of expected values that also occur in the compared expression. Code could return them without solving the
    task."""
    json: bool = False
    """Whether the expected value is written in the source as JSON (in JavaScript tests) rather than as Python."""
    blanks: tuple[Edit, ...] = ()
    """Edits outside the assertion that remove text which reveals the expected value. A grading that withholds the value
    applies them too."""
    rows: tuple[frozenset[str], ...] = ()
    """The names that the runner may give to each row of a parametrised test, in the order of `values`."""
    renamed: bool = False
    """Whether a grading that withholds the expected values also renames the rows of the parametrised test to row1, row2
    and so on, because their names may reveal values."""

    @property
    def value(self) -> object:
        return self.values[0]

    def row_of(self, row_id: str) -> int | None:
        """Return the index of the row that `row_id` names. Return None if it can name no row, or several."""
        found = [row for row, names in enumerate(self.rows) if row_id in names]
        return found[0] if len(found) == 1 else None
