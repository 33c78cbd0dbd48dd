"""One place in a test where something is expected."""

from __future__ import annotations

from dataclasses import dataclass

Span = tuple[int, int]
"""In bytes of the source."""
Edit = tuple[Span, bytes]
"""A span of the source, and what is put in its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    literal: Span | None
    """Where the expectation is written; None where another one cannot be put in its place."""
    values: tuple[object, ...]
    """What is expected, each time that the test comes by, and then from the start again; a literal is one value."""
    exception: str = ""
    """Its name, where one is expected."""
    statement: Span | None = None
    """Of an assertion of equality: all of it, and what is compared. It can be made elsewhere."""
    compared: Span = (0, 0)
    given: frozenset[str] = frozenset()
    """Of the values, in the words of `repr`, those that what is compared shows as well."""
    json: bool = False
    """How the value is written there: as JSON, or as Python does."""
    blanks: tuple[Edit, ...] = ()
    """What else tells the value, anywhere in the file, and must go with the statement."""
    rows: tuple[frozenset[str], ...] = ()
    """Of a table that the runner makes tests of: what it may call each row, as there are values. Empty for others."""
    renamed: bool = False
    """Without what is expected, its rows are called by their number."""

    @property
    def value(self) -> object:
        return self.values[0]

    def row_of(self, called: str) -> int | None:
        """The one row that may be called so."""
        found = [row for row, names in enumerate(self.rows) if called in names]
        return found[0] if len(found) == 1 else None
