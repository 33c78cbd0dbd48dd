"""Fetches the experts of requests that ended from vLLM's worker, all that wait at once with one call."""

from __future__ import annotations

import asyncio

import numpy as np
from vllm.v1.engine.async_llm import AsyncLLM

from etude.engine.protocol import UNKNOWN_EXPERT, ExpertArray, GenerateRequest


class ExpertsOfRequests:
    def __init__(self, engine: AsyncLLM, layers: int, top_k: int) -> None:
        self._engine, self._layers, self._top_k = engine, layers, top_k
        self._waiting: list[tuple[str, asyncio.Future[bytes]]] = []
        self._fetching: asyncio.Task[None] | None = None

    async def of(self, request: GenerateRequest, sampled: int) -> ExpertArray | None:
        """Return the experts as a Generation has them."""
        if not self._layers:
            return None
        raw = np.frombuffer(await self._take(request.id), np.uint16).reshape(-1, self._layers, self._top_k)
        positions = request.prompt.size + sampled
        # The last id was not fed to the network. Of an aborted request, more or fewer may have been.
        whole = np.full((positions, self._layers, self._top_k), UNKNOWN_EXPERT, np.uint16)
        known = raw[: positions - 1]
        whole[: len(known)] = known
        return whole[request.experts_from :]

    async def forget(self, request_id: str) -> None:
        if self._layers:
            await self._take(request_id)

    async def _take(self, request_id: str) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((request_id, answer))
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())
        return await answer

    async def _fetch(self) -> None:
        while self._waiting:
            wanted, self._waiting = self._waiting, []
            try:
                (found,) = await self._engine.collective_rpc("etude_take_experts", args=([name for name, _ in wanted],))
                for (_, answer), raw in zip(wanted, found, strict=True):
                    answer.set_result(raw)
            except Exception as error:  # noqa: BLE001  whoever waits must hear of it
                for _, answer in wanted:
                    if not answer.done():
                        answer.set_exception(error)
