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
    """Position of the expected value. None if no other value can be written there."""
    values: tuple[object, ...]
    """The expected values: one for a literal, otherwise one for each iteration of the surrounding loops or each row of
    a parametrised test."""
    exception: str = ""
    """Name of the expected exception; empty if a value is expected."""
    statement: ByteSpan | None = None
    """Position of the whole statement, if it is an equality assertion, whose comparison can be made outside the box.
    None for other assertions."""
    compared: ByteSpan = (0, 0)
    """Position of the expression that an equality assertion compares with the expected value."""
    given: frozenset[str] = frozenset()
    """The reprs of those expected values that also occur in the compared expression, and are therefore easy to
    guess."""
    json: bool = False
    """Whether the value is written in the source as JSON rather than as Python."""
    blanks: tuple[Edit, ...] = ()
    """Edits anywhere in the file, applied together with the edit of the statement. They remove all other text
    that reveals the expected value."""
    rows: tuple[frozenset[str], ...] = ()
    """For a parametrised test: the names that the runner may give to each row, in the order of `values`. Empty for
    other tests."""
    renamed: bool = False
    """Whether removing the expected values also renames the rows of a parametrised test to row1, row2 and so on."""

    @property
    def value(self) -> object:
        return self.values[0]

    def row_of(self, row_id: str) -> int | None:
        """Return the index of the parametrised row that has this name, or None if no row or more than one may have
        it."""
        found = [row for row, names in enumerate(self.rows) if row_id in names]
        return found[0] if len(found) == 1 else None
