"""A real HTTP server that speaks the OpenAI chat protocol and plays back answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
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


class ChatServer:
    """Answers in order; the token counts of `usage` are added, so that they are consistent. Requests are kept."""

    def __init__(self, answers, *, status: int = 200, statuses=()) -> None:
        self.answers = list(answers)
        self.status = status
        self.statuses = list(statuses)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        status = self.statuses.pop(0) if self.statuses else self.status
        if status != 200:
            code = "context_length_exceeded" if status == 400 else "unavailable"
            return JSONResponse({"error": {"code": code, "message": "no"}}, status)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return Response(answer, media_type="application/json")
        sizes = [len(str(message.get("content") or "")) // 4 + 1 for message in body["messages"]]
        usage = {"prompt_tokens": sum(sizes), "completion_tokens": 7}
        # Escaped, so that a test can send halves of surrogate pairs.
        return Response(json.dumps({"usage": usage, **answer}), media_type="application/json")

    async def __aenter__(self) -> ChatServer:
        app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        self._server.install_signal_handlers = lambda: None
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._serving
