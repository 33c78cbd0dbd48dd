"""A site: one place in a test where a value or exception is expected."""

from __future__ import annotations

from dataclasses import dataclass

Span = tuple[int, int]
"""Start and end in bytes of the source."""
Edit = tuple[Span, bytes]
"""A span of the source, and its replacement."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    literal: Span | None
    """Where the expected value is written; None where no other value can be put there."""
    values: tuple[object, ...]
    """The expected values, one per round, repeated from the start; a literal is one value."""
    exception: str = ""
    """Name of the expected exception; empty if a value is expected."""
    statement: Span | None = None
    """The whole statement of an equality assertion, which can be withheld; `compared` is the expression that it
    checks."""
    compared: Span = (0, 0)
    given: frozenset[str] = frozenset()
    """The reprs of those values that the compared expression contains as well."""
    json: bool = False
    """Whether the value is written as JSON rather than as Python."""
    blanks: tuple[Edit, ...] = ()
    """Edits anywhere in the file that remove everything else that reveals the value, to be made with the statement."""
    rows: tuple[frozenset[str], ...] = ()
    """For a parametrised test: the possible names of each row, in the order of `values`. Empty for others."""
    renamed: bool = False
    """Whether removing the expected value renames the rows to their numbers."""

    @property
    def value(self) -> object:
        return self.values[0]

    def row_of(self, called: str) -> int | None:
        """The index of the only row that may have this name, else None."""
        found = [row for row, names in enumerate(self.rows) if called in names]
        return found[0] if len(found) == 1 else None
