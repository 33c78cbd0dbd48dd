"""The two shapes of a text on its way into the corpus: a file as a source has it, and a document that passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Found(NamedTuple):
    """A file of a source, before any filter."""

    name: str
    """Path within its repository, with slashes."""
    data: bytes | str | None
    """None if the file was too large, or its name was enough to leave it out, so that it was not read."""
    size: int
    """Bytes of the file."""
    origin: str
    """Name, and version if known, of the package, repository, table or generator."""
    repository: str = ""
    language: str = ""
    """Language as a table names it, or empty."""
    licences: tuple[str, ...] = ()
    kind: str = "code"


Wanted = Callable[[str, int], bool]
"""Whether a file of this name and size need be read."""


class Part(Protocol):
    """A part of a source's files, a few megabytes where files allow, that one process reads. A part is pickled, its
    `repr` says which bytes it reads, and reading it again yields the same files."""

    def size(self, wanted: Wanted) -> int:
        """Bytes to read, for progress and estimates."""
        ...

    def read(self, wanted: Wanted) -> Iterator[Found]: ...


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    kind: str
    """"code", or a kind that the generator names. Pretraining reads documents of kind "lookup" first."""
    source: str
    """"stdlib", "folder", "generated", or the name of a source of code; the shares of the mixture depend on it."""
    origin: str
    """Name, and version if known, of the package, repository, table or generator."""
    name: str
    """Relative path of a code file, the first of those that were joined; file and line of a generated document."""
    repository: str = ""
