"""Sends answers over HTTP: whole, or as a stream of events.

Invariants: an answer whose client is gone is ended at once, and so is one whose client does not read for
`write_seconds`. When nothing was sent for `alive_seconds`, a comment is, or a space before a whole answer, so that
nothing on the way takes the connection for dead. Both are looked at twice in that time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from etude.serve.answer import Answer, Event
from etude.serve.dialects.exchange import Exchange
from etude.serve.refusal import Refused

_LONGEST_WARNING = 1000
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
        refusal: Callable[[Refused], tuple[int, dict[str, Any]]],
        ended: Callable[[Answer | Refused | None, float | None], None],
    ) -> None:
        """`prompt` is the number of the prompt's tokens. `ended` is called once: with the answer, the failure, or None
        if the client is gone, and with the time at which the answer began."""
        self._exchange, self._prompt, self._events, self._patience = exchange, prompt, events, patience
        self._refusal, self._ended = refusal, ended
        self._first: float | None = None
        self._told = False
        self._warnings = [(b"x-etude-warning", _header_value(text)) for text in exchange.warnings]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = _Writer(send)
        tasks = [
            asyncio.create_task(work) for work in (self._answer(writer), _disconnected(receive), self._wait(writer))
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except ClientGone:
            # A connection that nobody reads would wait forever for what is left to send.
            scope.get("state", {}).get("abort", lambda: None)()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._end(None)

    def _end(self, outcome: Answer | Refused | None) -> None:
        """Report how the answer ended, before its last bytes are sent: a client that has them may ask again at once."""
        if not self._told:
            self._told = True
            self._ended(outcome, self._first)

    async def _answer(self, writer: _Writer) -> None:
        async with aclosing(self._events) as events:
            await (self._streamed(events, writer) if self._exchange.streamed else self._whole(events, writer))

    async def _wait(self, writer: _Writer) -> None:
        """Say that the answer is still to come, whenever nothing was sent for long. Raise ClientGone once the client
        has not read for too long."""
        said = b": waiting\n\n" if self._exchange.streamed else b" "
        alive, write = self._patience.alive_seconds, self._patience.write_seconds
        while True:
            await asyncio.sleep(min(alive, write) / 2)
            silent = time.monotonic() - writer.last
            if writer.writing:
                if silent >= write:
                    raise ClientGone
            elif silent >= alive and not writer.over:
                await self._begin(writer)
                await writer.body(said)

    async def _begin(self, writer: _Writer) -> None:
        await writer.begin(200, [*(_EVENTS if self._exchange.streamed else _JSON), *self._warnings])

    async def _streamed(self, events: AsyncIterator[Event], writer: _Writer) -> None:
        await self._begin(writer)
        await writer.body(self._exchange.opening(self._prompt))
        try:
            async for event in events:
                self._first = self._first or time.monotonic()
                if isinstance(event, Answer):
                    self._end(event)
                await writer.body(self._exchange.event(event))
        except Refused as refused:
            self._end(refused)
            await writer.body(self._exchange.failure(refused))
        await writer.end(b"")

    async def _whole(self, events: AsyncIterator[Event], writer: _Writer) -> None:
        status, told = 503, dict[str, Any]()
        try:
            async for event in events:
                self._first = self._first or time.monotonic()
                if isinstance(event, Answer):
                    self._end(event)
                    status, told = 200, self._exchange.whole(event)
        except Refused as refused:
            self._end(refused)
            status, told = self._refusal(refused)
        body = json.dumps(told).encode()
        writer.over = True
        await writer.begin(status, [*_JSON, (b"content-length", str(len(body)).encode()), *self._warnings])
        await writer.end(body)


class _Writer:
    """The messages of one response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.last = time.monotonic()
        """When something was sent."""
        self.writing = False
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
        self.last, self.writing = time.monotonic(), True
        try:
            await self._send(message)
        except OSError as error:
            raise ClientGone from error
        self.writing = False


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _header_value(text: str) -> bytes:
    """Return text as a header may hold it. Clients' own words are in it, such as names of tools."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:_LONGEST_WARNING].encode()
