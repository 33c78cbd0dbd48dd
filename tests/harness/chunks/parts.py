"""An embedder that needs no model, and an endpoint that serves one over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from etude.harness.chunks.embedder import EmbeddingFailed, Vectors, unit
from etude.harness.chunks.terms import terms

MEANS = {"remov": "delet", "eras": "delet", "fetch": "read", "load": "read"}
"""Words that mean the same to it."""
WIDTH = 509


def vector_of(text: str) -> list[float]:
    row = [0.0] * WIDTH
    for term in terms(text):
        row[crc32(MEANS.get(term, term).encode()) % WIDTH] += 1.0
    return row


class WordEmbedder:
    batch = 4
    asks = ""

    def __init__(self, name: str = "words", fails: str = "") -> None:
        self.name = name
        self.fails = fails
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if self.fails:
            raise EmbeddingFailed(self.fails)
        self.asked += texts
        return unit(np.array([vector_of(text) for text in texts], np.float32))


class EmbeddingServer:
    """Answers with `vector_of`, or with what `answers` holds first: a status, or a body."""

    def __init__(self, *answers: int | str | dict[str, Any]) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, int):
                return JSONResponse({"error": {"message": "no"}}, answer)
            return Response(answer) if isinstance(answer, str) else JSONResponse(answer)
        data = [{"index": n, "embedding": vector_of(text)} for n, text in enumerate(body["input"])]
        return JSONResponse({"data": data[::-1]})

    async def __aenter__(self) -> EmbeddingServer:
        app = Starlette(routes=[Route("/v1/embeddings", self.answer, methods=["POST"])])
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
        self._server.install_signal_handlers = lambda: None  # type: ignore[method-assign]
        self._task = asyncio.create_task(self._server.serve())
        while not self._server.started:
            assert not self._task.done()
            await asyncio.sleep(0)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.should_exit = True
        await self._task
