"""Whatever is sent, of what the OpenAPI document describes or nearly so, gets an answer that it describes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.serve.running import NAME, QWEN, Running, running, scripted

SAID = QWEN.render_turn("so", "It does.", [])


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(scripted(lambda request: SAID)) as found:
        yield found


POSTS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/etude/v1/generate",
]
GETS = ["/v1/models", "/v1/models/{name}", "/etude/v1/info", "/metrics", "/health"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("method", "path"), [*(("POST", path) for path in POSTS), *(("GET", path) for path in GETS)])
def test_what_the_document_describes(server: Running, method: str, path: str, mode: GenerationMode) -> None:
    """Bodies that it allows, and others."""
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")

    examples = 20 if method == "POST" else 3

    # The same ones each time: what chance finds here belongs into a test of its own.
    @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=document[path][method].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body["model"] = NAME
        # A request may be well formed and ask for what is not supported.
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    with suppress(Unsatisfiable):  # a page without parameters cannot be asked wrongly
        ask()


def test_every_place_is_described(server: Running) -> None:
    described = set(httpx.get(f"{server.url}/openapi.json").json()["paths"])
    there = {route.path.replace(":path", "") for route in server.app.routes}
    assert there - described == {"/openapi.json", "/"}
    assert described == {*POSTS, *GETS} & there
