"""Stores facts about environments for later processes: which environments were found to hold no trace of a solution
(sealed), and results of trial runs of hidden tests in them (proofs).

Each fact is a small file outside any box, readable only by its owner, because a proof quotes hidden tests. Invariant:
files are written atomically. A file is named by the digest of the inputs that its fact follows from. So concurrent
processes that write the same file had the same inputs, and cannot contradict each other.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from pathlib import Path

from etude.journal.files import write_synced
from etude.tasks.seal import Removed, Sealed


class FactStore:
    """Stores facts about environments in one folder: sealed images, keyed by the digest of an environment, and proofs,
    keyed by the digest of a proof's inputs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: str) -> Sealed | None:
        """Return the sealed image made from the environment with this digest, or None if none is stored."""
        try:
            row = json.loads(self._path(digest).read_bytes())
            removed = tuple(Removed(path, reason) for path, reason in row["removed"])
            return Sealed(str(row["image"]), str(row["workdir"]), removed)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # The file is missing or damaged, so the environment is made again.

    def keep(self, digest: str, sealed: Sealed) -> None:
        """Store the sealed image made from the environment with this digest."""
        removed = [[item.path, item.reason] for item in sealed.removed]
        self._write(self._path(digest), json.dumps({**asdict(sealed), "removed": removed}, indent=1).encode())

    def read_proof(self, digest: str) -> bytes | None:
        """Return the stored bytes of a proof, or None. The verifier that wrote the proof decides whether it is still
        valid.
        """
        try:
            return self._path(digest, ".proof").read_bytes()
        except OSError:
            return None

    def store_proof(self, digest: str, proof: bytes) -> None:
        self._write(self._path(digest, ".proof"), proof)

    def _write(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A random name, because one process may write the same file twice at once.
        aside = self._folder / f".{path.name}.{secrets.token_hex(4)}"
        try:
            aside.touch(mode=0o600)
            write_synced(aside, data)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _path(self, digest: str, kind: str = ".json") -> Path:
        return self._folder / f"{digest}{kind}"
