"""Stores what verifiers have proven about tasks in their environments, for later processes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from etude.tasks.environment.prepared import Prepared
from etude.tasks.environment.source import source_of
from etude.tasks.environment.stored_facts import Shelf
from etude.tasks.task import Task


class Proofs:
    """A proof is stored under the task's environment and whatever else the verifier says it depends on. Where the
    environment shows the host's base, the proof also holds only for the present state of the host."""

    def __init__(self, folder: Path, host: Callable[[], Awaitable[str]]) -> None:
        self._folder, self._host = folder, host

    async def find(self, task: Task, prepared: Prepared, follows_from: str) -> bytes | None:
        found = await asyncio.to_thread(known_proof, self._folder, task, follows_from)
        host, proof = found or ("", None)
        return proof if host == await self._state(prepared) else None

    async def keep(self, task: Task, prepared: Prepared, follows_from: str, proof: bytes) -> None:
        host = await self._state(prepared)
        await asyncio.to_thread(
            lambda: Shelf(self._folder).keep_proof(_key(task, follows_from), f"{host}\n".encode() + proof)
        )

    async def _state(self, prepared: Prepared) -> str:
        return await self._host() if prepared.on_base else ""


def known_proof(folder: Path, task: Task, follows_from: str) -> tuple[str, bytes] | None:
    """The stored proof and the state of the host it was made in; None if there is none."""
    found = Shelf(folder).find_proof(_key(task, follows_from))
    if found is None:
        return None
    host, _, proof = found.partition(b"\n")
    return host.decode("ascii", "replace"), proof


def _key(task: Task, follows_from: str) -> str:
    return hashlib.sha256(f"{source_of(task).digest} {follows_from}".encode()).hexdigest()[:32]
