"""Stores the line index (`HostIndex`) of the host's base, that is, of the system folders that boxes show.

The index is a file in the user's cache, so all runs share it. Only the index of the latest state of the host is kept.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etude.journal.files import write_atomically
from etude.sandbox.contract import Sandboxes
from etude.tasks.seal.base_scan import Base, HostIndex, build_host_index


def user_cache() -> Path:
    """Return Étude's folder in the user's cache. Its contents may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude"


@dataclass(frozen=True, slots=True)
class HostIndexes:
    folder: Path
    say: Callable[[str], None] = lambda _: None
    """Called with progress messages, because building an index takes a minute."""

    async def of(self, sandboxes: Sandboxes, base: Base) -> HostIndex:
        """Return the index of the host's files that boxes show, in the state that `base` describes. Build and store the
        index if none is stored for this state."""
        path = self.folder / f"{base.digest}.base"
        if known := await asyncio.to_thread(HostIndex.read, path):
            return known
        self.say(
            "indexing every host file that boxes can read, to check that none holds a solution (once, about a minute)"
        )
        host_index = await build_host_index(sandboxes)
        try:
            await asyncio.to_thread(_keep, path, host_index)
        except OSError as error:
            self.say(f"{path}: cannot be written: {error.strerror}; the next command must index the host again")
        return host_index


def _keep(path: Path, host_index: HostIndex) -> None:
    write_atomically(path, host_index.dump())
    for other in path.parent.glob("*.base"):
        if other != path:  # This index is obsolete: it belongs to an earlier state of the host.
            other.unlink(missing_ok=True)
