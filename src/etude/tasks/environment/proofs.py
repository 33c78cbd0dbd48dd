"""Stores proofs for later processes. A proof records what a verifier found out by running a task's tests with the
reference solution and without it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from etude.tasks.environment.prepared import Prepared
from etude.tasks.environment.source import source_of
from etude.tasks.environment.stored_facts import FactStore
from etude.tasks.task import Task


class Proofs:
    """Stores proofs. A proof records what a verifier found out by running a task's tests with the reference solution
    and without it. It is keyed by the task's environment and by `proof_inputs`, a digest of everything else that it
    depends on. If boxes of the environment show the host's system folders, the proof is valid only while these stay
    unchanged.
    """

    def __init__(self, folder: Path, host: Callable[[], Awaitable[str]]) -> None:
        self._folder, self._host = folder, host

    async def find(self, task: Task, prepared: Prepared, proof_inputs: str) -> bytes | None:
        found = await asyncio.to_thread(known_proof, self._folder, task, proof_inputs)
        host, proof = found or ("", None)
        return proof if host == await self._state(prepared) else None

    async def keep(self, task: Task, prepared: Prepared, proof_inputs: str, proof: bytes) -> None:
        host = await self._state(prepared)
        await asyncio.to_thread(
            lambda: FactStore(self._folder).store_proof(_key(task, proof_inputs), f"{host}\n".encode() + proof)
        )

    async def _state(self, prepared: Prepared) -> str:
        return await self._host() if prepared.on_base else ""


def known_proof(folder: Path, task: Task, proof_inputs: str) -> tuple[str, bytes] | None:
    """Return the stored proof of a task (what a verifier found out by running the task's tests) as a pair: the state of
    the host in which the proof was made, and the proof. Return None if none is stored."""
    found = FactStore(folder).read_proof(_key(task, proof_inputs))
    if found is None:
        return None
    host, _, proof = found.partition(b"\n")
    return host.decode("ascii", "replace"), proof


def _key(task: Task, proof_inputs: str) -> str:
    return hashlib.sha256(f"{source_of(task).digest} {proof_inputs}".encode()).hexdigest()[:32]
