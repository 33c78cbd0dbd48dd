"""An engine wrapper that records each generation in the journal as time spent waiting for the engine."""

from __future__ import annotations

from etude.engine.protocol import Engine, EngineInfo, EngineStats, GenerateRequest, Generation
from etude.journal import Journal


class WaitedEngine:
    """`deadline` is only logged; `engine` enforces it."""

    def __init__(self, engine: Engine, journal: Journal, deadline: float) -> None:
        self._engine, self._journal, self._deadline = engine, journal, deadline

    async def generate(self, request: GenerateRequest) -> Generation:
        with self._journal.waiting(on="engine", deadline=self._deadline):
            return await self._engine.generate(request)

    async def info(self) -> EngineInfo:
        return await self._engine.info()

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def open(self, conversations: list[str]) -> None:
        await self._engine.open(conversations)

    async def close(self, conversation: str) -> None:
        await self._engine.close(conversation)

    async def update(self, version: int) -> None:
        await self._engine.update(version)

    async def stats(self) -> EngineStats:
        return await self._engine.stats()
