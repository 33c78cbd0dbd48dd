"""Stores facts about environments for later processes: their sealed images, and proofs.

Each fact is a small file outside any box, readable only by its owner, because a proof quotes hidden tests. Invariant:
files are written atomically. A file is named by the digest of the inputs that its fact follows from. So concurrent
processes that write the same file had the same inputs, and cannot contradict each other.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from etude.journal.files import write_synced
from etude.tasks.environment.prepared import Prepared
from etude.tasks.environment.source import source_of
from etude.tasks.seal import Removed, Sealed
from etude.tasks.task import Task


def stored_image(folder: Path, digest: str) -> Sealed | None:
    """Return the sealed image made from the environment with this digest, or None if none is stored."""
    try:
        row = json.loads((folder / f"{digest}.json").read_bytes())
        removed = tuple(Removed(path, reason) for path, reason in row["removed"])
        return Sealed(str(row["image"]), str(row["workdir"]), removed)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # The file is missing or damaged, so the environment is made again.


def store_image(folder: Path, digest: str, sealed: Sealed) -> None:
    removed = [[item.path, item.reason] for item in sealed.removed]
    _write(folder / f"{digest}.json", json.dumps({**asdict(sealed), "removed": removed}, indent=1).encode())


class Proofs:
    """Stores proofs: what a verifier found out by running a task's tests with the reference solution and without it.

    A proof is keyed by the task's environment and by `proof_inputs`, a digest of everything else that it depends on. If
    boxes of the environment show the host's system folders, a proof is valid only while these stay unchanged.
    """

    def __init__(self, folder: Path, host: Callable[[], Awaitable[str]]) -> None:
        self._folder, self._host = folder, host

    async def find(self, task: Task, prepared: Prepared, proof_inputs: str) -> bytes | None:
        found = await asyncio.to_thread(known_proof, self._folder, task, proof_inputs)
        host, proof = found or ("", None)
        return proof if host == await self._state(prepared) else None

    async def keep(self, task: Task, prepared: Prepared, proof_inputs: str, proof: bytes) -> None:
        host = await self._state(prepared)
        path = await asyncio.to_thread(_proof_path, self._folder, task, proof_inputs)
        await asyncio.to_thread(_write, path, f"{host}\n".encode() + proof)

    async def _state(self, prepared: Prepared) -> str:
        return await self._host() if prepared.on_base else ""


def known_proof(folder: Path, task: Task, proof_inputs: str) -> tuple[str, bytes] | None:
    """Return a task's stored proof (what a verifier found out by trial runs of its tests), after the state of the
    host's system folders with which it was made. Return None if no proof is stored."""
    try:
        host, _, proof = _proof_path(folder, task, proof_inputs).read_bytes().partition(b"\n")
    except OSError:
        return None
    return host.decode("ascii", "replace"), proof


def _proof_path(folder: Path, task: Task, proof_inputs: str) -> Path:
    digest = hashlib.sha256(f"{source_of(task).digest} {proof_inputs}".encode()).hexdigest()[:32]
    return folder / f"{digest}.proof"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name, because one process may write the same file twice at once.
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        aside.touch(mode=0o600)
        write_synced(aside, data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
