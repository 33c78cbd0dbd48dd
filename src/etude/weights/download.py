"""Fetches stored chunks of a version and keeps what has arrived, so that a reader that was killed goes on from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from etude.journal.files import write_atomically
from etude.weights.errors import CorruptVersion
from etude.weights.manifest import Chunk
from etude.weights.objects import Objects
from etude.weights.tensor import checksum


@dataclass(frozen=True, slots=True)
class Download:
    objects: Objects
    folder: Path | None = None
    """Where fetched bytes are kept until the version has been read; None keeps none."""

    def fetch(self, path: str, begin: int, chunks: Sequence[Chunk]) -> list[memoryview]:
        """Return the stored bytes of chunks that follow one another in an object, verified."""
        size = sum(chunk.length for chunk in chunks)
        kept = None if self.folder is None else self.folder / f"{path.replace('/', '-')}-{begin}-{size}"
        if kept is not None:
            with suppress(OSError, CorruptVersion):  # not there, or damaged: it is fetched again
                return _cut(memoryview(kept.read_bytes()), chunks)
        data = self.objects.get_range(path, begin, size)
        found = _cut(data, chunks)
        if kept is not None:
            with suppress(OSError):  # without space nothing is kept
                write_atomically(kept, bytes(data))
        return found

    def done(self) -> None:
        """Forget what was kept."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def cache_of(location: str) -> Path | None:
    """Return this user's folder for what is being fetched from a store; None if the store is a folder itself."""
    scheme, separator, _ = location.partition("://")
    if not separator or scheme == "file":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "etude" / "versions" / checksum(location.encode())


def _cut(data: memoryview, chunks: Sequence[Chunk]) -> list[memoryview]:
    found, at = [], 0
    for chunk in chunks:
        found.append(data[at : at + chunk.length])
        at += chunk.length
        if checksum(found[-1]) != chunk.stored:
            raise CorruptVersion("stored bytes are not those that were published")
    return found
