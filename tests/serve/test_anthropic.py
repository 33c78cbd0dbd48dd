"""Messages, asked with Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from tests.serve.running import NAME, QWEN, Running, running, scripted
from tests.serve.test_openai import CALL, TOOLS

FUNCTION = TOOLS[0]["function"]
TOOL: Any = {"name": "read", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
USER: Any = {"role": "user", "content": "größer? 変"}
SAID = QWEN.render_turn("It is\n\nsmall.", "I read 変 it.\n", [CALL, '\n{"name": "read", oops\n'])
TEXT = 'I read 変 it.\n\n{"name": "read", oops\n'


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(scripted(lambda request: SAID)) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_a_whole_answer(server: Running, client: Anthropic) -> None:
    answer = client.messages.create(
        model=NAME,
        max_tokens=700,
        system="You mend code.",
        messages=[USER],
        tools=[TOOL],
        extra_body={"temperature": 0.5},
    )
    thinking, text, call = answer.content
    assert (thinking.type, text.type, call.type) == ("thinking", "text", "tool_use")
    assert (thinking.thinking, text.text) == ("It is\n\nsmall.", TEXT)  # type: ignore[union-attr]
    assert (call.name, call.input) == ("read", {"path": "größe.py", "first": 3})  # type: ignore[union-attr]
    assert answer.stop_reason == "tool_use"
    request = server.engine.requests[-1]
    assert request.prompt.tolist() == QWEN.offering(TOOLS).opening("You mend code.", "größer? 変")
    assert (request.sampling.max_tokens, request.sampling.temperature) == (700, 0.5)
    half = len(request.prompt) // 2
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (len(request.prompt) - half, half)
    assert usage.output_tokens == len(SAID)


def test_a_streamed_answer_is_the_whole_one(client: Anthropic) -> None:
    asked: Any = {"model": NAME, "max_tokens": 700, "system": "You mend code.", "messages": [USER], "tools": [TOOL]}
    whole = client.messages.create(**asked)
    deltas = 0
    with client.messages.stream(**asked) as stream:
        for event in stream:
            deltas += event.type == "content_block_delta"
        streamed = stream.get_final_message()

    def parts(answer: anthropic.types.Message) -> list[Any]:
        kinds = {"thinking": "thinking", "text": "text", "tool_use": "input"}
        return [
            (kind, [getattr(block, name) for block in answer.content if block.type == kind])
            for kind, name in kinds.items()
        ]

    thinking, texts, calls = parts(streamed)
    assert ("text", ["".join(texts[1])]) == parts(whole)[1]
    assert [thinking, calls] == [parts(whole)[0], parts(whole)[2]]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert streamed.usage.cache_read_input_tokens == whole.usage.cache_read_input_tokens
    assert deltas > 6, "the text comes in pieces"


def test_a_conversation_with_calls_is_written_as_the_model_wrote_it(server: Running, client: Anthropic) -> None:
    """The echo of an answer gives the ids that were sampled, with a system message in the middle and blocks that only
    steer Anthropic's own service."""
    turn = QWEN.render_turn("It is\n\nsmall.", "I read.", [CALL, CALL])
    server.engine.script = lambda request: turn
    try:
        asked: Any = {"model": NAME, "max_tokens": 700, "tools": [TOOL]}
        told = [{"type": "text", "text": "You mend code.", "cache_control": {"type": "ephemeral"}}]
        first: Any = [USER, {"role": "system", "content": "There is news."}]
        answer = client.messages.create(messages=first, system=told, **asked)
        results: Any = [
            {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": text}]}
            for block, text in zip(answer.content[2:], ("one", "two"), strict=True)
        ]
        said: Any = [*first, {"role": "assistant", "content": answer.content}]
        said.append({"role": "user", "content": [*reversed(results), {"type": "text", "text": "go on"}]})
        client.messages.create(messages=said, system=told, **asked)
    finally:
        server.engine.script = lambda request: SAID
    one, two = (request.prompt.tolist() for request in server.engine.requests[-2:])
    form = QWEN.offering(TOOLS)
    header = len(form.answering)
    news = form.system_message("There is news.")
    assert news is not None
    assert one == [*form.opening("You mend code.", USER["content"])[:-header], *news]
    outputs = form.tool_outputs(["one", "two"])[:-header]
    assert two == [*one, *turn, *form.closing(turn), *outputs, *form.user_message("go on")]
    assert client.messages.count_tokens(model=NAME, messages=said, system=told, tools=[TOOL]).input_tokens == len(two)


@pytest.mark.parametrize(("stop", "reason"), [(["nothing", "d 変"], "stop_sequence"), ([], "tool_use")])
def test_why_it_stopped(client: Anthropic, stop: list[str], reason: str) -> None:
    answer = client.messages.create(model=NAME, max_tokens=700, messages=[USER], tools=[TOOL], stop_sequences=stop)
    assert (answer.stop_reason, answer.stop_sequence) == (reason, "d 変" if stop else None)
    cut = client.messages.create(model=NAME, max_tokens=5, messages=[USER])
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 5)


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "the model 'other' is not served here; there is tiny"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            anthropic.BadRequestError,
            "output_config.format = ",
        ),
        ({"extra_body": {"top_k": 5}}, anthropic.BadRequestError, "top_k = 5 is not supported"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, anthropic.BadRequestError, "prompt is too long"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.BadRequestError,
            "a block of type 'image' is not supported",
        ),
    ],
)
def test_refusals_are_of_this_protocol(client: Anthropic, changes: Any, kind: Any, told: str) -> None:
    with pytest.raises(kind) as refused:
        client.messages.create(**{"model": NAME, "max_tokens": 9, "messages": [USER], **changes})
    assert told in refused.value.body["error"]["message"]
    assert refused.value.body["type"] == "error"


def test_tools_of_the_service_are_left_out_and_told(server: Running, client: Anthropic) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    answer = client.messages.with_raw_response.create(model=NAME, max_tokens=9, messages=[USER], tools=[TOOL, search])
    assert answer.headers["x-etude-warning"] == "tools left out: web_search_20250305"
    assert server.engine.requests[-1].prompt.tolist() == QWEN.offering(TOOLS).opening(None, USER["content"])


def test_models(client: Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
