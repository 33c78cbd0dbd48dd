"""Delivers the tokens of streamed requests to the consumers that pull them, on the host's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from etude.engine.outbox import Outbox
from etude.engine.protocol import Delivery, FloatArray, Generation, IntArray, Refusal

Sampled = tuple[IntArray, FloatArray, IntArray]
"""Tokens, log-probs and versions."""


class Streaming:
    """Tokens are collected when a pull is answered with all news of its consumer."""

    def __init__(self, gate: asyncio.Event, sampled_since: Callable[[str, int], Sampled | None]) -> None:
        """Nothing is delivered while `gate` is not set. `sampled_since` returns the tokens of a request after the first
        so many; None if there are none."""
        self._gate, self._sampled_since = gate, sampled_since
        self._outbox = Outbox()
        self._consumer_of: dict[str, str] = {}
        self._pulls: dict[str, asyncio.Event] = {}
        """What wakes the pull that waits for news, by consumer. Another pull of the consumer takes its place."""
        self._news: set[str] = set()
        """Consumers with tokens to collect."""

    def begin(self, request_id: str, consumer: str, *, first: bool) -> bool:
        """Stream a request. Return False if it is streamed to this consumer already."""
        begun = self._outbox.begin(consumer, request_id, time.monotonic(), first=first)
        self._consumer_of[request_id] = consumer
        return begun

    def sampled(self, request_id: str) -> None:
        """Say that a request has new tokens, whether it is streamed or not."""
        consumer = self._consumer_of.get(request_id)
        if consumer is not None and (consumer not in self._news or not self._outbox.count(request_id)):
            self._news.add(consumer)
            self._wake(consumer)

    def end(self, answer: Generation | Refusal) -> None:
        consumer = self._consumer_of.pop(answer.id, None)
        if consumer is not None:
            self._outbox.end(answer)
            self._wake(consumer)

    async def pull(self, consumer: str, after: int, wait: float, every: float) -> Delivery:
        until = time.monotonic() + wait
        self._wake(consumer)
        mine = self._pulls[consumer] = asyncio.Event()
        try:
            while self._pulls.get(consumer) is mine:
                now = time.monotonic()
                if not self._gate.is_set():
                    if now >= until:
                        break
                    await _within(until - now, self._gate)
                    continue
                for request_id in self._outbox.unheard():
                    self._collect(request_id)
                over, urgent = now >= until, self._outbox.urgent(consumer, after)
                everything = over or now >= self._outbox.due(consumer) + every
                if everything:
                    self._news.discard(consumer)
                    for request_id in self._outbox.in_flight(consumer):
                        self._collect(request_id)
                if urgent or over or (everything and self._outbox.fresh(consumer)):
                    return self._outbox.take(consumer, after, now, everything=everything)
                fresh = consumer in self._news or self._outbox.fresh(consumer)
                due = min(until, self._outbox.due(consumer) + every) if fresh else until
                mine.clear()
                await _within(due - now, mine)
            return Delivery(after, [])
        finally:
            if self._pulls.get(consumer) is mine:
                del self._pulls[consumer]

    def silent(self) -> list[str]:
        """Forget the consumers that no longer pull. Return their requests, to be aborted."""
        gone = self._outbox.silent(time.monotonic(), self._pulls)
        requests = [request_id for consumer in gone for request_id in self._outbox.forget(consumer)]
        for request_id in requests:
            self._consumer_of.pop(request_id, None)
        return requests

    def _collect(self, request_id: str) -> None:
        sampled = self._sampled_since(request_id, self._outbox.count(request_id))
        if sampled is not None:
            self._outbox.put(request_id, *sampled)

    def _wake(self, consumer: str) -> None:
        if (waiting := self._pulls.get(consumer)) is not None:
            waiting.set()


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
