"""Turns texts into embedding vectors, in the harness's process or at a configured endpoint, never inside a box.

Only an `EndpointEmbedder` sends texts over the network, and only to its own address. Every failure raises
EmbeddingFailed, with a one-line message for the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import httpx
import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class EmbeddingFailed(Exception):
    """Texts could not be embedded. The search then compares words only and reports the failure."""


@runtime_checkable
class Embedder(Protocol):
    @property
    def name(self) -> str:
        """Name under which the model's vectors are stored. Vectors stored under different names cannot be compared."""
        ...

    @property
    def batch(self) -> int:
        """Number of texts to embed per call, small enough that a call takes only seconds."""
        ...

    @property
    def asks(self) -> str:
        """Prefix to put before each query, for models that need one; the texts to be searched get no prefix."""
        ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a matrix whose rows are the texts' embedding vectors, each of length one. Raises EmbeddingFailed."""
        ...


class EndpointEmbedder:
    """Embedder that calls an endpoint of the OpenAI protocol; `url` is the endpoint's address without `/embeddings`."""

    batch = 64
    asks = ""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str = "",
        seconds: float = 60.0,
        attempts: int = 3,
        pause_seconds: float = 1.0,
    ) -> None:
        self.name = f"{url.rstrip('/')} {model}"
        self._model = model
        self._url = f"{url.rstrip('/')}/embeddings"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._seconds = seconds
        self._attempts = attempts
        self._pause = pause_seconds

    async def embed(self, texts: Sequence[str]) -> Vectors:
        body = {"model": self._model, "input": list(texts)}
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(self._pause * 2 ** (attempt - 1))
            try:
                async with httpx.AsyncClient(timeout=self._seconds, headers=self._headers) as client:
                    answer = await client.post(self._url, json=body)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = type(error).__name__
                continue
            if answer.status_code == 429 or answer.status_code >= 500:
                problem = f"status {answer.status_code}"
                continue
            if answer.status_code != 200:
                raise EmbeddingFailed(f"{self._url} answered with status {answer.status_code}")
            return self._read(answer, len(texts))
        raise EmbeddingFailed(f"{self._url} did not answer: {problem}")

    def _read(self, answer: httpx.Response, count: int) -> Vectors:
        try:
            data: list[dict[str, Any]] = answer.json()["data"]
            rows = [each["embedding"] for each in sorted(data, key=lambda each: int(each["index"]))]
            vectors = np.array(rows, dtype=np.float32)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise EmbeddingFailed(f"{self._url}: the answer contains no embeddings ({type(error).__name__})") from error
        if vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
            raise EmbeddingFailed(f"{self._url}: expected {count} vectors of finite numbers, found {vectors.shape}")
        return unit(vectors)


def unit(vectors: Vectors) -> Vectors:
    """Scale each row to length one; a row of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled
