"""A real HTTP server that speaks the OpenAI chat protocol and plays back answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


def completion(*, text: str = "", calls=(), raw_calls=(), finish: str = "stop", **message: object) -> dict[str, Any]:
    encoded = [(name, json.dumps(arguments)) for name, arguments in calls] + list(raw_calls)
    tool_calls = [
        {"id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(encoded)
    ]
    said = {
        "role": "assistant",
        "content": text or None,
        **({"tool_calls": tool_calls} if tool_calls else {}),
        **message,
    }
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


def pieces(answer: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """A completion as the events of a stream, its texts cut into pieces of `size` characters."""

    def event(finish: str | None = None, **delta: object) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    choice = answer["choices"][0]
    message = choice["message"]
    yield event(role="assistant")
    for key in ("reasoning_content", "reasoning", "content"):
        for part in cut(message.get(key) or "", size):
            yield event(**{key: part})
    for index, call in enumerate(message.get("tool_calls") or []):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        head = {"index": index, "id": call["id"], "type": "function", "function": {"name": name, "arguments": ""}}
        yield event(tool_calls=[head])
        for part in cut(arguments, size):
            yield event(tool_calls=[{"index": index, "function": {"arguments": part}}])
    yield event(choice["finish_reason"])
    yield {"choices": [], "usage": answer["usage"]}


def cut(text: str, size: int) -> Iterator[str]:
    return (text[place : place + size] for place in range(0, len(text), size))


class Served:
    """Answers POST requests to `path` over real HTTP, at `url`."""

    path = "/v1/chat/completions"
    port = 0

    async def answer(self, request: Request) -> Response:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = Starlette(routes=[Route(self.path, self.answer, methods=["POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="error", lifespan="off"))
        self._server.install_signal_handlers = lambda: None
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            assert not self._serving.done()
            await asyncio.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._serving


class ChatServer(Served):
    """Answers in order; the token counts of `usage` are added, so that they are consistent. Requests are kept.

    What is asked for in pieces comes in pieces of `size` characters, `pause` seconds apart, unless `streams` says
    otherwise. `holds` events are sent of the first streamed answer, and the rest when `go_on` is set."""

    def __init__(
        self,
        answers,
        *,
        status: int = 200,
        statuses=(),
        refusals=(),
        retry_after: str = "",
        streams: str = "yes",
        size: int = 3,
        pause: float = 0.0,
        holds: int | None = None,
        port: int = 0,
    ) -> None:
        self.port = port
        self.answers = list(answers)
        self.streams, self.size, self.pause, self.holds = streams, size, pause, holds
        self.go_on = asyncio.Event()
        self.closed = asyncio.Event()
        """Somebody went away in the middle of a stream."""
        self.status = status
        self.statuses = list(statuses)
        self.refusals = list(refusals)
        """Told one after another with the status 400; None answers."""
        self.retry_after = retry_after
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if self.refusals and (refused := self.refusals.pop(0)):
            return JSONResponse({"error": {"message": refused}}, 400)
        status = self.statuses.pop(0) if self.statuses else self.status
        if status != 200:
            headers = {"retry-after": self.retry_after} if self.retry_after else {}
            code = "context_length_exceeded" if status == 400 else "unavailable"
            return JSONResponse({"error": {"code": code, "message": "no"}}, status, headers)
        if body.get("stream") and self.streams == "refused":
            return JSONResponse({"error": {"message": "Unknown field: stream"}}, 422)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return Response(answer, media_type="application/json")
        sizes = [len(str(message.get("content") or "")) // 4 + 1 for message in body["messages"]]
        usage = {"prompt_tokens": sum(sizes), "completion_tokens": 7}
        answer = {"usage": usage, **answer}
        if body.get("stream") and self.streams != "json":
            return StreamingResponse(self.stream(answer), media_type="text/event-stream")
        # Escaped, so that a test can send halves of surrogate pairs.
        return Response(json.dumps(answer), media_type="application/json")

    async def stream(self, answer: dict[str, Any]) -> AsyncIterator[str]:
        holds, self.holds = self.holds, None
        try:
            for number, event in enumerate(pieces(answer, self.size)):
                if number == holds:
                    if self.streams == "torn":
                        return
                    await self.go_on.wait()
                if self.pause:
                    await asyncio.sleep(self.pause)
                yield f"data: {json.dumps(event)}\n\n"
        except asyncio.CancelledError:
            self.closed.set()
            raise
        yield "data: [DONE]\n\n"
