"""Sends answers over HTTP: whole, or as a stream of events.

Invariants: an answer whose client is gone is ended at once, and so is one whose client does not read for
`write_seconds`. While nothing else is sent for `alive_seconds`, a comment is, or a space before a whole answer, so that
nothing on the way takes the connection for dead.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope, Send

from etude.serve.answer import Answer, Event
from etude.serve.dialects.exchange import Exchange
from etude.serve.refusal import Problem, Refused

_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_JSON = [(b"content-type", b"application/json")]


class ClientGone(Exception):
    """The client closed the connection, or does not read."""


@dataclass(frozen=True, slots=True)
class Patience:
    alive_seconds: float = 15.0
    write_seconds: float = 30.0


class AnswerResponse:
    """Sends the events of one answer in the words of its protocol."""

    def __init__(
        self,
        exchange: Exchange,
        prompt: int,
        events: AsyncGenerator[Event, None],
        patience: Patience,
        refusal: Callable[[Refused], tuple[int, object]],
        ended: Callable[[Answer | Refused | None], None],
    ) -> None:
        """`prompt` is the number of the prompt's tokens. `ended` is called once: with the answer, with the failure, or
        with None if the client is gone."""
        self._exchange, self._prompt, self._events, self._patience = exchange, prompt, events, patience
        self._refusal, self._ended = refusal, ended
        self._warnings = [(b"x-etude-warning", text.encode("latin-1", "replace")) for text in exchange.warnings]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome: Answer | Refused | None = None
        writer = _Writer(send, self._patience)
        tasks = [
            asyncio.create_task(work) for work in (self._answer(writer), _disconnected(receive), self._wait(writer))
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                outcome = tasks[0].result()
        except ClientGone:
            # A connection that nobody reads would wait forever for what is left to send.
            scope.get("state", {}).get("abort", lambda: None)()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._ended(outcome)

    async def _answer(self, writer: _Writer) -> Answer | Refused:
        async with aclosing(self._events) as events:
            return await (self._streamed(events, writer) if self._exchange.streamed else self._whole(events, writer))

    async def _wait(self, writer: _Writer) -> None:
        """Say that the answer is still to come, whenever nothing was sent for long."""
        said = b": waiting\n\n" if self._exchange.streamed else b" "
        while True:
            await asyncio.sleep(max(0.01, writer.last + self._patience.alive_seconds - time.monotonic()))
            if time.monotonic() - writer.last >= self._patience.alive_seconds and not writer.over:
                await self._begin(writer)
                await writer.body(said)

    async def _begin(self, writer: _Writer) -> None:
        await writer.begin(200, [*(_EVENTS if self._exchange.streamed else _JSON), *self._warnings])

    async def _streamed(self, events: AsyncIterator[Event], writer: _Writer) -> Answer | Refused:
        outcome: Answer | Refused = Refused(Problem.ENGINE, "the answer has no end")
        await self._begin(writer)
        await writer.body(self._exchange.opening(self._prompt))
        try:
            async for event in events:
                if isinstance(event, Answer):
                    outcome = event
                await writer.body(self._exchange.event(event))
        except Refused as refused:
            outcome = refused
            await writer.body(self._exchange.failure(refused))
        await writer.end(b"")
        return outcome

    async def _whole(self, events: AsyncIterator[Event], writer: _Writer) -> Answer | Refused:
        outcome: Answer | Refused = Refused(Problem.ENGINE, "the answer has no end")
        try:
            async for event in events:
                if isinstance(event, Answer):
                    outcome = event
        except Refused as refused:
            outcome = refused
        refused_as = None if isinstance(outcome, Answer) else self._refusal(outcome)
        status, told = refused_as or (200, self._exchange.whole(outcome))  # type: ignore[arg-type]
        body = json.dumps(told).encode()
        writer.over = True
        await writer.begin(status, [*_JSON, (b"content-length", str(len(body)).encode()), *self._warnings])
        await writer.end(body)
        return outcome


class _Writer:
    """The messages of one response. Raises ClientGone if the client does not read."""

    def __init__(self, send: Send, patience: Patience) -> None:
        self._send, self._patience = send, patience
        self.last = time.monotonic()
        """When something was sent."""
        self._begun = False
        self.over = False
        """Whether only the last part is missing."""

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._begun:
            self._begun = True
            await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, part: bytes) -> None:
        if part:
            await self._write({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes) -> None:
        self.over = True
        await self._write({"type": "http.response.body", "body": part, "more_body": False})

    async def _write(self, message: Message) -> None:
        self.last = time.monotonic()
        try:
            async with asyncio.timeout(self._patience.write_seconds):
                await self._send(message)
        except (TimeoutError, OSError) as error:
            raise ClientGone from error


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
