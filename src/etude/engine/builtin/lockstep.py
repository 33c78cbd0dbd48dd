"""Rounds of lockstep mode, in which the contents of every batch depend on the requests alone, never on their timing.

A round begins when every open conversation has a request waiting. It takes one request of each conversation, in the
order of conversation ids, and runs them all to their end. Requests that arrive during a round wait for the next round.
If a conversation is closed during a round, its cached row becomes the first to evict only when the next round begins.
"""

from __future__ import annotations

from collections import deque

from etude.engine.protocol import EngineError, GenerateRequest


class Rounds:
    def __init__(self) -> None:
        self._open: set[str] = set()
        self._closed: set[str] = set()
        self._waiting: dict[str, GenerateRequest] = {}
        self.queue: deque[GenerateRequest] = deque()
        """The current round's requests that have not begun to run."""

    @property
    def waiting(self) -> int:
        return len(self.queue) + len(self._waiting)

    @property
    def complete(self) -> bool:
        return bool(self._open) and self._open == self._waiting.keys()

    def open(self, conversations: list[str]) -> bool:
        """Open conversations. If nothing was open or waiting before, return True: the caller then drops all cached
        rows."""
        fresh = not self._open and not self._waiting and not self.queue
        self._open.update(conversations)
        return fresh

    def close(self, conversation: str) -> GenerateRequest | None:
        """Close a conversation. Return its waiting request, if any, which will never run."""
        self._open.discard(conversation)
        self._closed.add(conversation)
        return self._waiting.pop(conversation, None)

    def put(self, request: GenerateRequest) -> None:
        name = request.conversation
        if name not in self._open:
            raise EngineError(f"lockstep: conversation {name!r} of request {request.id} is not open; call open() first")
        if name in self._waiting:
            raise EngineError(f"lockstep: conversation {name!r} has request {self._waiting[name].id} waiting already")
        self._waiting[name] = request

    def remove(self, request_id: str) -> GenerateRequest | None:
        for name, request in self._waiting.items():
            if request.id == request_id:
                return self._waiting.pop(name)
        return None

    def begin(self) -> list[str] | None:
        """Begin the next round, and return the conversations that were closed since the last round began. Return None
        if the round cannot begin yet, because an open conversation has no request waiting or none is open."""
        if not self.complete:
            return None
        self.queue.extend(self._waiting[name] for name in sorted(self._waiting))
        self._waiting.clear()
        closed = sorted(self._closed)
        self._closed.clear()
        return closed
