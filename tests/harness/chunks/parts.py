"""An embedder that needs no model, and an endpoint that serves one over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.harness.chat_server import Served

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


class EmbeddingServer(Served):
    """Answers with `vector_of`, or with what `answers` holds first: a status, or a body."""

    path = "/v1/embeddings"

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
