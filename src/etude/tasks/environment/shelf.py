"""What is known of environments, for the processes to come: which have been sealed, and what verifiers have proven in
them. A small file each, in no box and for its owner's eyes alone: a proof knows the hidden tests.

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
        self._write(self._path(digest), json.dumps({**asdict(sealed), "removed": removed}, indent=1).encode())

    def find_proof(self, digest: str) -> bytes | None:
        """As it was kept; whoever wrote it says what it is worth."""
        try:
            return self._path(digest, ".proof").read_bytes()
        except OSError:
            return None

    def keep_proof(self, digest: str, proof: bytes) -> None:
        self._write(self._path(digest, ".proof"), proof)

    def _write(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A name of its own: two that are made at once may be of one process.
        aside = self._folder / f".{path.name}.{secrets.token_hex(4)}"
        try:
            aside.touch(mode=0o600)
            write_synced(aside, data)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _path(self, digest: str, kind: str = ".json") -> Path:
        return self._folder / f"{digest}{kind}"
