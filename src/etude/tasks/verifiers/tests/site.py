"""A site: one assertion in a test that expects a value or an exception, with its position in the source."""

from __future__ import annotations

from dataclasses import dataclass

ByteSpan = tuple[int, int]
"""Start and end of a range of the source, in bytes."""
Edit = tuple[ByteSpan, bytes]
"""A range of the source, and its replacement."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One assertion that expects a value or an exception."""

    literal: ByteSpan | None
    """Where the expected value is written. None if no other value can be written there."""
    values: tuple[object, ...]
    """The expected values, one per round of the surrounding loops. A literal outside of loops is one value."""
    exception: str = ""
    """Name of the expected exception; empty if a value is expected."""
    statement: ByteSpan | None = None
    """The whole statement of an equality assertion, which can be withheld; `compared` is the expression that it checks.
    None for other assertions."""
    compared: ByteSpan = (0, 0)
    given: frozenset[str] = frozenset()
    """The reprs of those expected values that the compared expression contains as well."""
    json: bool = False
    """Whether the value is written as JSON rather than as Python."""
    blanks: tuple[Edit, ...] = ()
    """Edits anywhere in the file that remove everything else that reveals the value. They are made together with the
    edit of the statement."""
    rows: tuple[frozenset[str], ...] = ()
    """For a parametrised test: the possible names of each row, in the order of `values`. Empty for other tests."""
    renamed: bool = False
    """Whether removing the expected value renames the rows to their numbers."""

    @property
    def value(self) -> object:
        return self.values[0]

    def row_of(self, row_id: str) -> int | None:
        """Return the index of the only row that may have this name, or None if there is no such row, or several."""
        found = [row for row, names in enumerate(self.rows) if row_id in names]
        return found[0] if len(found) == 1 else None
