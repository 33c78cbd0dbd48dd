"""Delivers the tokens of streamed requests to the consumers that pull them. All methods run on the decode thread.

Tokens are collected when a pull is answered with all news of its consumer, so that a step costs no more for being
streamed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from etude.engine.builtin.engine import BuiltinEngine
from etude.engine.outbox import Outbox
from etude.engine.protocol import Delivery, EngineError, Generation, Refusal


@dataclass(slots=True)
class _Pull:
    after: int
    until: float
    every: float
    answer: Future[Delivery]


class Streaming:
    def __init__(self, engine: BuiltinEngine, now: Callable[[], float]) -> None:
        self._engine, self._now = engine, now
        self._outbox = Outbox()
        self._pulls: dict[str, _Pull] = {}
        """The pulls that wait for news, by consumer."""

    def begin(self, request_id: str, consumer: str, *, first: bool) -> bool:
        """Stream a request. Return False if it is streamed to this consumer already."""
        return self._outbox.begin(consumer, request_id, self._now(), first=first)

    def holds(self, request_id: str) -> bool:
        return self._outbox.holds(request_id)

    def end(self, answer: Generation | Refusal) -> None:
        if self._outbox.holds(answer.id):
            self._outbox.end(answer)

    def pull(self, consumer: str, after: int, wait: float, every: float, answer: Future[Delivery]) -> None:
        earlier = self._pulls.pop(consumer, None)
        if earlier is not None and earlier.answer.set_running_or_notify_cancel():
            earlier.answer.set_result(Delivery(earlier.after, []))
        self._pulls[consumer] = _Pull(after, self._now() + wait, every, answer)

    def deliver(self) -> list[str]:
        """Answer the pulls for which there is news, or whose time is over. Return the requests to abort, because their
        consumer was silent for too long."""
        now, outbox = self._now(), self._outbox
        if self._pulls:
            for request_id in outbox.unheard():
                self._collect(request_id)
        for consumer, pull in list(self._pulls.items()):
            try:
                delivery = self._delivery(consumer, pull, now)
            except EngineError as error:
                del self._pulls[consumer]
                if pull.answer.set_running_or_notify_cancel():
                    pull.answer.set_exception(error)
                continue
            if delivery is not None:
                del self._pulls[consumer]
                # If the caller has left, it did not acknowledge the delivery, and may ask for it again.
                if pull.answer.set_running_or_notify_cancel():
                    pull.answer.set_result(delivery)
        return [name for consumer in outbox.silent(now, self._pulls) for name in outbox.forget(consumer)]

    def close(self, error: EngineError) -> None:
        """Refuse the pulls that wait."""
        for pull in self._pulls.values():
            if pull.answer.set_running_or_notify_cancel():
                pull.answer.set_exception(error)
        self._pulls.clear()

    @property
    def next_time(self) -> float | None:
        """When `deliver` has to be called though nothing happens; None if no pull waits."""
        return min((pull.until for pull in self._pulls.values()), default=None)

    def _delivery(self, consumer: str, pull: _Pull, now: float) -> Delivery | None:
        outbox = self._outbox
        over, urgent = now >= pull.until, outbox.urgent(consumer, pull.after)
        everything = over or now >= outbox.due(consumer) + pull.every
        if everything:
            for request_id in outbox.in_flight(consumer):
                self._collect(request_id)
        if urgent or over or (everything and outbox.fresh(consumer)):
            return outbox.take(consumer, pull.after, now, everything=everything)
        return None

    def _collect(self, request_id: str) -> None:
        sampled = self._engine.sampled_since(request_id, self._outbox.count(request_id))
        if sampled is not None:
            self._outbox.put(request_id, *sampled)
