"""Which environments have been sealed already: a small file each, for the processes to come.

Invariant: a file is there whole or not at all, and says nothing that another process's file contradicts: equal digests
are made from equal things."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from pathlib import Path

from etude.journal.files import write_synced
from etude.tasks.seal import Removed, Sealed


class Shelf:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: str) -> Sealed | None:
        try:
            row = json.loads(self._path(digest).read_bytes())
            removed = tuple(Removed(path, reason) for path, reason in row["removed"])
            return Sealed(str(row["image"]), str(row["workdir"]), removed)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # Made anew, and written again.

    def keep(self, digest: str, sealed: Sealed) -> None:
        removed = [[item.path, item.reason] for item in sealed.removed]
        text = json.dumps({**asdict(sealed), "removed": removed}, indent=1)
        self._folder.mkdir(parents=True, exist_ok=True)
        # A name of its own: two that are made at once may be of one process.
        aside = self._folder / f".{digest}.{secrets.token_hex(4)}"
        try:
            write_synced(aside, text.encode())
            aside.replace(self._path(digest))
        finally:
            aside.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"
