"""An engine whose answers are written in advance: a real `StreamingEngine`, for exact texts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import numpy as np

from etude.engine.outbox import Outbox
from etude.engine.protocol import (
    Delivery,
    EngineError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    Generation,
    Refusal,
    StopReason,
    Usage,
)

Script = Callable[[GenerateRequest], Sequence[int]]


class ScriptedEngine:
    """Answers each request with the ids that `script` gives for it, `step` tokens at a time and cut off at the
    request's bound."""

    def __init__(self, script: Script, *, vocab_size: int, context: int = 1 << 20, step: int = 3) -> None:
        self.script, self.step = script, step
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.go = asyncio.Event()
        """Cleared: no further tokens come."""
        self.go.set()
        self.refuses: EngineError | None = None
        """With what every request in flight fails."""
        self._info = EngineInfo(3, context, vocab_size, 0, 0)
        self._outbox = Outbox()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def info(self) -> EngineInfo:
        return self._info

    async def stats(self) -> EngineStats:
        return EngineStats(version=3, running=len(self._running), sampled_tokens=7)

    async def begin(self, request: GenerateRequest, consumer: str, *, first: bool) -> None:
        if self._outbox.begin(consumer, request.id, time.monotonic(), first=first):
            self.requests.append(request)
            self._running[request.id] = asyncio.create_task(self._run(request))

    async def pull(self, consumer: str, after: int, *, wait: float = 5.0, every: float = 0.05) -> Delivery:
        until = time.monotonic() + wait
        while time.monotonic() < until and not self._outbox.urgent(consumer, after):
            if self._outbox.fresh(consumer):
                break
            await asyncio.sleep(0.001)
        return self._outbox.take(consumer, after, time.monotonic(), everything=True)

    async def generate(self, request: GenerateRequest) -> Generation:
        raise NotImplementedError

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if (task := self._running.pop(request_id, None)) is not None:
            task.cancel()
            self._outbox.end(self._generation(request_id, [], StopReason.ABORTED))

    async def open(self, conversations: list[str]) -> None: ...

    async def close(self, conversation: str) -> None: ...

    async def update(self, version: int) -> None: ...

    async def _run(self, request: GenerateRequest) -> None:
        ids = list(self.script(request))
        bound = request.sampling.max_tokens
        said, stop = (ids, StopReason.STOP) if len(ids) <= bound else (ids[:bound], StopReason.LENGTH)
        for start in range(0, len(said), self.step):
            await self.go.wait()
            if self.refuses is not None:
                self._outbox.end(Refusal(request.id, self.refuses))
                del self._running[request.id]
                return
            part = np.array(said[start : start + self.step], np.int32)
            self._outbox.put(request.id, part, logprobs_of(part), np.full(len(part), 3, np.int32))
            await asyncio.sleep(0.002)
        self._outbox.end(self._generation(request.id, said, stop, len(request.prompt)))
        del self._running[request.id]

    def _generation(self, name: str, said: list[int], stop: StopReason, prompt: int = 0) -> Generation:
        tokens = np.array(said, np.int32)
        usage = Usage(prompt_tokens=prompt, cached_tokens=prompt // 2)
        return Generation(name, tokens, logprobs_of(tokens), np.full(len(tokens), 3, np.int32), stop, None, usage=usage)


def logprobs_of(tokens: np.ndarray) -> np.ndarray:
    """Log-probs by which a test recognises each token."""
    return (-tokens / 1000).astype(np.float32)
