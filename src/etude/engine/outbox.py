"""The news of streamed requests, held until their consumers pull it. It is a pure state machine, without clock or
threads, for any engine that implements `StreamingEngine`.

Invariants (property-tested over any order of begins, tokens, ends, pulls, lost deliveries and repeated pulls): a
consumer gets the tokens of a request in order and once each, then its answer, and then nothing of it; a delivery that
it did not acknowledge is returned again, unchanged.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np

from etude.engine.protocol import (
    Delivery,
    EngineError,
    FloatArray,
    Generation,
    IntArray,
    Piece,
    Refusal,
    StreamsLost,
)

SILENT_SECONDS = 30.0
"""A consumer that does not pull for so long is forgotten, and its requests are aborted."""


@dataclass(slots=True)
class _Consumer:
    heard: float
    """Time of its last call."""
    delivered: float
    """Time of the last delivery of all news; of its first call before there is one."""
    last: Delivery = field(default_factory=lambda: Delivery(0, []))
    """The last delivery, which the consumer has not acknowledged yet."""
    running: set[str] = field(default_factory=set)
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    ended: list[Generation | Refusal] = field(default_factory=list)


class Outbox:
    """All times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._consumers: dict[str, _Consumer] = {}
        self._consumer_of: dict[str, str] = {}
        self._put: dict[str, int] = {}
        """Number of tokens put so far, by request in flight."""
        self._urgent: set[str] = set()
        """Consumers for whom a first token or an answer waits."""

    def begin(self, consumer: str, request_id: str, now: float, *, first: bool) -> bool:
        """Add a request. Return False, and change nothing, if the consumer has begun it already and has not
        acknowledged its answer. Raises StreamsLost, unless `first`, if the consumer is unknown, and EngineError if
        another consumer has a request of this id in flight."""
        if not first:
            self._known(consumer)
        if self._consumer_of.get(request_id, consumer) != consumer:
            raise EngineError(f"request {request_id} is in flight for another consumer")
        found = self._consumers.setdefault(consumer, _Consumer(now, now))
        found.heard = now
        if request_id in found.running or any(
            item.id == request_id and not isinstance(item, Piece) for item in (*found.ended, *found.last.items)
        ):
            return False
        self._consumer_of[request_id] = consumer
        self._put[request_id] = 0
        found.running.add(request_id)
        return True

    def holds(self, request_id: str) -> bool:
        return request_id in self._consumer_of

    def in_flight(self, consumer: str) -> Iterator[str]:
        """Yield the requests of a consumer that are in flight."""
        yield from self._known(consumer).running

    def unheard(self) -> list[str]:
        """Return the requests in flight of which no token was put."""
        return [request_id for request_id, count in self._put.items() if count == 0]

    def count(self, request_id: str) -> int:
        """Return how many tokens of a request in flight were put, which is where its next tokens start."""
        return self._put[request_id]

    def put(self, request_id: str, tokens: IntArray, logprobs: FloatArray, versions: IntArray) -> None:
        """Add the next tokens of a request in flight."""
        if not len(tokens):
            return
        name, start = self._consumer_of[request_id], self._put[request_id]
        self._consumers[name].pieces.setdefault(request_id, []).append(
            Piece(request_id, start, tokens, logprobs, versions)
        )
        self._put[request_id] = start + len(tokens)
        if start == 0:
            self._urgent.add(name)

    def end(self, answer: Generation | Refusal) -> None:
        """End a request. Tokens that wait in the outbox are not delivered as pieces, since the answer holds them."""
        name = self._consumer_of.pop(answer.id)
        del self._put[answer.id]
        found = self._consumers[name]
        found.running.discard(answer.id)
        found.pieces.pop(answer.id, None)
        found.ended.append(answer)
        self._urgent.add(name)

    def due(self, consumer: str) -> float:
        """Return the time of the last delivery of all news; of the consumer's first call before there is one."""
        return self._known(consumer).delivered

    def urgent(self, consumer: str, after: int) -> bool:
        """Whether a pull must be answered at once: a first token or an answer waits, or the last delivery got lost."""
        return consumer in self._urgent or after != self._known(consumer).last.number

    def fresh(self, consumer: str) -> bool:
        """Whether there is anything to deliver."""
        found = self._known(consumer)
        return bool(found.pieces or found.ended)

    def take(self, consumer: str, after: int, now: float, *, everything: bool) -> Delivery:
        """Return what is new after the delivery numbered `after`; an empty delivery of this number if nothing is.
        Without `everything` these are first tokens and answers alone, so that each of them does not make all other
        requests deliver their tokens one by one. Raises StreamsLost if the consumer is unknown, or that delivery."""
        found = self._known(consumer)
        found.heard = now
        if after == found.last.number - 1 and found.last.items:
            return found.last
        if after != found.last.number:
            raise StreamsLost(
                f"consumer {consumer} asked for what follows delivery {after}, the last one was {found.last.number}"
            )
        pieces = [each for each in found.pieces.values() if everything or each[0].start == 0]
        items = [*map(_joined, pieces), *found.ended]
        for each in pieces:
            del found.pieces[each[0].id]
        found.ended = []
        self._urgent.discard(consumer)
        if everything and items:
            found.delivered = now
        found.last = Delivery(after + bool(items), items)
        return found.last

    def silent(self, now: float, pulling: Container[str] = ()) -> list[str]:
        """Return the consumers to `forget`. Those in `pulling` wait for an answer right now."""
        return [
            name
            for name, found in self._consumers.items()
            if now - found.heard > SILENT_SECONDS and name not in pulling
        ]

    def forget(self, consumer: str) -> list[str]:
        """Drop a consumer. Return its requests in flight, which the caller aborts."""
        found = self._consumers.pop(consumer)
        self._urgent.discard(consumer)
        for request_id in found.running:
            del self._consumer_of[request_id], self._put[request_id]
        return sorted(found.running)

    def _known(self, consumer: str) -> _Consumer:
        found = self._consumers.get(consumer)
        if found is None:
            raise StreamsLost(f"the engine knows no consumer {consumer}: it was restarted, or the consumer was silent")
        return found


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    return Piece(
        pieces[0].id,
        pieces[0].start,
        np.concatenate([piece.tokens for piece in pieces]),
        np.concatenate([piece.logprobs for piece in pieces]),
        np.concatenate([piece.versions for piece in pieces]),
    )
