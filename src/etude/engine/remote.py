"""Client with which workers call an engine that runs as a cluster service. It needs no torch and can be pickled.

A request gives the same result however often it is sent. So if the engine's process dies, requests are sent again,
until their deadline, to the process that replaces it. In lockstep mode this is not possible, because the batches depend
on the open conversations, which the dead process held: `generate` raises EngineError, and the caller has to replay the
whole step.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from etude.cluster.contract import ClusterError, DeadlineExceeded, Remote, ServiceFailed
from etude.engine.protocol import (
    Delivery,
    EngineError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    Generation,
    StreamsLost,
)
from etude.recipe.compute import ClusterRecipe

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


class RemoteEngine:
    def __init__(self, remote: Remote, limits: ClusterRecipe, *, lockstep: bool = False) -> None:
        """The deadlines in `limits` count from sending a request to its answer, engine restarts included."""
        self._remote = remote
        self._limits = limits
        self._lockstep = lockstep

    @property
    def name(self) -> str:
        return self._remote.name

    async def info(self) -> EngineInfo:
        answer: EngineInfo = await self._answer("info", deadline=self._limits.call_seconds)
        return answer

    async def generate(self, request: GenerateRequest) -> Generation:
        answer: Generation = await self._answer(
            "generate", request, deadline=self._limits.generate_seconds, resend=not self._lockstep
        )
        return answer

    async def begin(self, request: GenerateRequest, consumer: str, *, first: bool) -> None:
        await self._answer("begin", request, consumer, deadline=self._limits.call_seconds, first=first)

    async def pull(self, consumer: str, after: int, *, wait: float = 5.0, every: float = 0.05) -> Delivery:
        deadline = wait + self._limits.call_seconds
        try:
            delivery: Delivery = await self._remote.call(
                "pull", consumer, after, wait=wait, every=every, deadline=deadline
            )
        except (DeadlineExceeded, ServiceFailed) as error:
            raise EngineError(f"{self.name}.pull: {error}") from error
        except ClusterError as error:
            raise StreamsLost(f"{self.name} died, and with it the requests of consumer {consumer} ({error})") from error
        return delivery

    async def abort(self, request_id: str) -> None:
        await self._unless_dead("abort", request_id)

    async def open(self, conversations: list[str]) -> None:
        await self._answer("open", conversations, deadline=self._limits.call_seconds)

    async def close(self, conversation: str) -> None:
        await self._unless_dead("close", conversation)

    async def update(self, version: int) -> None:
        await self._answer("update", version, deadline=self._limits.weights_seconds)

    async def rest(self) -> None:
        await self._answer("rest", deadline=self._limits.weights_seconds)

    async def wake(self) -> None:
        await self._answer("wake", deadline=self._limits.weights_seconds)

    async def stats(self) -> EngineStats:
        answer: EngineStats = await self._answer("stats", deadline=self._limits.call_seconds)
        return answer

    async def _unless_dead(self, method: str, argument: str) -> None:
        """Call a method, unless the engine is dead: then there is nothing to abort or close."""
        try:
            await self._remote.call(method, argument, deadline=self._limits.call_seconds)
        except ClusterError as error:
            if isinstance(error, (DeadlineExceeded, ServiceFailed)):
                raise EngineError(f"{self.name}.{method}({argument!r}): {error}") from error

    async def _answer(self, method: str, *arguments: Any, deadline: float, resend: bool = True, **options: Any) -> Any:
        """Call a method and return its result. With `resend`, call again if the engine died and was restarted."""
        until = time.monotonic() + deadline
        while True:
            try:
                left = max(until - time.monotonic(), 0.001)
                return await self._remote.call(method, *arguments, deadline=left, **options)
            except (DeadlineExceeded, ServiceFailed) as error:
                raise EngineError(f"{self.name}.{method}: {error}") from error
            except ClusterError as error:
                if not resend:
                    raise EngineError(
                        f"{self.name} died during {method}, and with it the open conversations of the lockstep round; "
                        f"replay the step from its beginning ({error})"
                    ) from error
                await self._wait_until_alive(method, until, deadline, error)

    async def _wait_until_alive(self, method: str, until: float, deadline: float, cause: ClusterError) -> None:
        """Wait for the restarted engine. Raises EngineError, with the last error, at the monotonic time `until`, which
        is the end of `deadline` seconds."""
        pause = FIRST_PAUSE
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise EngineError(
                    f"waited {deadline:g} s for {self.name} to be restarted and to answer {method}: {cause}"
                ) from cause
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                if (await self._remote.health(deadline=min(5.0, max(left, 0.001)))).alive:
                    return
            except ClusterError as error:
                cause = error
