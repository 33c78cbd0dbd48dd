"""Streams generations of an engine to any number of callers in one process. It is one consumer: a single pull at a time
fetches the news of all their requests.

Invariant: every stream ends, with the whole Generation or an EngineError, even if the engine dies.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress

from etude.engine.protocol import EngineError, GenerateRequest, Generation, Piece, Refusal, StreamingEngine, StreamsLost

_News = Piece | Generation | Refusal


class Streams:
    """It belongs to the event loop in which it is used."""

    def __init__(self, engine: StreamingEngine, *, every: float = 0.05, wait: float = 5.0) -> None:
        """`every` is the time between two pieces of a request, but for the first; a shorter one costs more calls."""
        self._engine, self._every, self._wait = engine, every, wait
        self._queues: dict[str, asyncio.Queue[_News]] = {}
        self._consumer = ""
        """Empty while nothing is in flight: whoever begins then is a new consumer."""
        self._beginning = asyncio.Lock()
        self._pulling: asyncio.Task[None] | None = None

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Piece | Generation]:
        """Yield a request's pieces, and at its end the whole Generation, which also holds the tokens sampled since the
        last piece. Raises EngineError if the engine cannot serve it; StreamsLost if it died, so that another attempt
        may succeed. A caller that leaves early must close the iterator, which aborts the request."""
        if request.id in self._queues:
            raise EngineError(f"request {request.id} is streamed already")
        queue = self._queues[request.id] = asyncio.Queue()
        ended = False
        try:
            await self._begin(request)
            while not ended:
                news = await queue.get()
                ended = not isinstance(news, Piece)
                if isinstance(news, Refusal):
                    raise news.error
                yield news
        finally:
            if self._queues.get(request.id) is queue:
                del self._queues[request.id]
            if not ended:
                await self._abort(request.id)

    async def close(self) -> None:
        """Abort all requests; their streams end with an EngineError."""
        await asyncio.gather(*(self._abort(request_id) for request_id in list(self._queues)))
        self._lose(EngineError("the streams were closed"))
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.gather(self._pulling, return_exceptions=True)

    async def _begin(self, request: GenerateRequest) -> None:
        while True:
            async with self._beginning:
                consumer, first = self._consumer or uuid.uuid4().hex, not self._consumer
                try:
                    await self._engine.begin(request, consumer, first=first)
                except StreamsLost as error:
                    if first:
                        raise
                    self._lose(error, besides=request.id)
                    continue
                if first:
                    self._consumer = consumer
                    self._pulling = asyncio.create_task(self._pull(consumer))
                return

    async def _pull(self, consumer: str) -> None:
        """Hand out the news of a consumer until none of its requests is in flight."""
        after = 0
        while self._queues and self._consumer == consumer:
            try:
                delivery = await self._engine.pull(consumer, after, wait=self._wait, every=self._every)
            except Exception as error:
                known = error if isinstance(error, EngineError) else EngineError(f"the engine failed: {error!r}")
                if self._consumer == consumer:
                    self._lose(known)
                if known is not error:
                    raise
                return
            after = delivery.number
            for item in delivery.items:
                if (queue := self._queues.get(item.id)) is None:
                    continue  # its caller has left
                queue.put_nowait(item)
                if not isinstance(item, Piece):
                    del self._queues[item.id]
        if self._consumer == consumer:
            self._consumer = ""

    def _lose(self, error: EngineError, besides: str = "") -> None:
        """End all streams but one with an error. Their requests end too: with the engine, or because nobody pulls."""
        self._consumer = ""
        for request_id in [request_id for request_id in self._queues if request_id != besides]:
            self._queues.pop(request_id).put_nowait(Refusal(request_id, error))

    async def _abort(self, request_id: str) -> None:
        with suppress(EngineError):
            await self._engine.abort(request_id)
