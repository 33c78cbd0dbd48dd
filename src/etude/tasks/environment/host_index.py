"""Where the index of the host's base (`Book`) is stored: one per state of the host, shared by all stores and runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etude.journal.files import write_atomically
from etude.sandbox.contract import Sandboxes
from etude.tasks.seal.base_scan import Base, Book, write_book


def user_cache() -> Path:
    """Étude's folder in the user's cache. Its contents may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude"


@dataclass(frozen=True, slots=True)
class Books:
    folder: Path
    say: Callable[[str], None] = lambda _: None
    """Called with progress messages: building an index takes a minute."""

    async def of(self, sandboxes: Sandboxes, base: Base) -> Book:
        """Load the index of this state of the base, or build and store it."""
        path = self.folder / f"{base.digest}.base"
        if known := await asyncio.to_thread(Book.read, path):
            return known
        self.say("reading all that boxes see of this host, once: no solution may be there (about a minute)")
        book = await write_book(sandboxes)
        try:
            await asyncio.to_thread(_keep, path, book)
        except OSError as error:
            self.say(f"{path}: cannot be written: {error.strerror}; the next command reads it all again")
        return book


def _keep(path: Path, book: Book) -> None:
    write_atomically(path, book.dump())
    for other in path.parent.glob("*.base"):
        if other != path:  # It belongs to an earlier state of the host, so it is obsolete.
            other.unlink(missing_ok=True)
