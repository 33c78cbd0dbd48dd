"""A site is one assertion in a test that expects a value or an exception, with its position in the source."""

from __future__ import annotations

from dataclasses import dataclass

ByteSpan = tuple[int, int]
"""Start and end of a range of a source file, in bytes."""
Edit = tuple[ByteSpan, bytes]
"""A byte range of a source file, and the text to replace it with."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One assertion in a test that expects a value or an exception, with its position in the source."""

    literal: ByteSpan | None
    """Position of the assertion's expected value in the source. None if a grading cannot write another value there."""
    values: tuple[object, ...]
    """The values that the assertion expects: a single one, or one for each iteration of the surrounding loops or each
    row of a parametrised test."""
    exception: str = ""
    """Name of the exception that the assertion expects; empty if it expects a value."""
    statement: ByteSpan | None = None
    """Position of the whole statement, if it is an equality assertion, whose comparison can be made outside the box.
    None for other assertions."""
    compared: ByteSpan = (0, 0)
    """Position of the expression that an equality assertion compares with the expected value."""
    given: frozenset[str] = frozenset()
    """The reprs of the assertion's expected values that its compared expression contains too. Code can return them
    without solving anything, so they are easy to guess."""
    json: bool = False
    """Whether the expected value is written in the source as JSON (in JavaScript tests) rather than as Python."""
    blanks: tuple[Edit, ...] = ()
    """Edits that remove text outside the assertion, anywhere in the file, that reveals its expected value. They are
    applied together with the edit of the assertion itself."""
    rows: tuple[frozenset[str], ...] = ()
    """For a parametrised test: the names that the runner may give to each row, in the order of `values`. Empty for
    other tests."""
    renamed: bool = False
    """Whether removing the expected values also renames the rows of a parametrised test to row1, row2 and so on,
    because the original names may reveal these values."""

    @property
    def value(self) -> object:
        return self.values[0]

    def row_of(self, row_id: str) -> int | None:
        """Return the index of the row of a parametrised test that `row_id` names. Return None if `row_id` cannot name
        any row, or could name more than one."""
        found = [row for row, names in enumerate(self.rows) if row_id in names]
        return found[0] if len(found) == 1 else None
