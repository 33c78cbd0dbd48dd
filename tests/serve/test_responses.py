"""Responses, asked with OpenAI's own client, and as Codex asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.serve.running import NAME, QWEN, Running, running, scripted
from tests.serve.test_openai import CALL, SAID, TOOLS

FUNCTION: Any = {"type": "function", "strict": False, **TOOLS[0]["function"]}
USER: Any = {"role": "user", "content": "größer? 変"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(scripted(lambda request: SAID)) as found:
        yield found


@pytest.fixture
def client(server: Running) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def shown(response: Any) -> list[Any]:
    """The items of an output, without their ids."""
    return [
        (item.type, item.name, item.arguments)
        if item.type == "function_call"
        else (item.type, [part.text for part in item.content])
        for item in response.output
    ]


def test_a_whole_answer(server: Running, client: OpenAI) -> None:
    answer = client.responses.create(
        model=NAME, input=[USER], instructions="You mend code.", tools=[FUNCTION], max_output_tokens=600
    )
    thinking, message, first, second = shown(answer)
    assert thinking == ("reasoning", ["It is\n\nsmall."])
    assert message == ("message", ["I read 変 it.\n"])
    assert (first[1], json.loads(first[2])) == ("read", {"path": "größe.py", "first": 3})
    assert second[1:] == ("read", '\n{"name": "read", oops\n')
    assert answer.output_text == "I read 変 it.\n"
    assert answer.status == "completed"
    request = server.engine.requests[-1]
    assert request.prompt.tolist() == QWEN.offering(TOOLS).opening("You mend code.", "größer? 変")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(request.prompt), len(SAID))
    assert answer.usage.input_tokens_details.cached_tokens == len(request.prompt) // 2


def test_a_streamed_answer_is_the_whole_one(client: OpenAI) -> None:
    asked: Any = {"model": NAME, "input": "größer?", "tools": [FUNCTION]}
    whole = client.responses.create(**asked)
    kinds: list[str] = []
    with client.responses.stream(**asked) as stream:
        for number, event in enumerate(stream):
            kinds.append(event.type)
            assert getattr(event, "sequence_number", number) == number or event.type not in ("response.created",)
        streamed = stream.get_final_response()
    assert shown(streamed) == shown(whole)
    assert streamed.usage == whole.usage
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    assert kinds.count("response.output_text.delta") > 2, "the text comes in pieces"


@pytest.mark.parametrize("echo", ["whole", "sealed"])
def test_a_conversation_with_calls_is_written_as_the_model_wrote_it(server: Running, client: OpenAI, echo: str) -> None:
    """What the client sends back gives the ids that were sampled, also if it keeps of the thinking only what it takes
    for encrypted; developer messages and tools of the service as Codex sends them."""
    said: Any = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You mend code."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "here"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "größer?"}]},
    ]
    tools: Any = [FUNCTION, {"type": "web_search"}, {"type": "namespace", "name": "multi_agent_v1", "tools": []}]
    asked: Any = {"model": NAME, "tools": tools, "store": False, "include": ["reasoning.encrypted_content"]}
    raw = client.responses.with_raw_response.create(input=said, **asked)
    assert raw.headers["x-etude-warning"] == "tools left out: web_search, namespace"
    items = [item.model_dump(exclude_none=True) for item in raw.parse().output]
    if echo == "sealed":
        items[0] = {key: value for key, value in items[0].items() if key != "content"}
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call, "output": text}
        for call, text in zip(calls, ("one", "two"), strict=True)
    ]
    client.responses.create(input=[*said, *items, *outputs], **asked)
    one, two = (request.prompt.tolist() for request in server.engine.requests[-2:])
    form = QWEN.offering(TOOLS)
    assert two == [*one, *SAID, *form.closing(SAID), *form.tool_outputs(["one", "two"])]


def test_an_answer_that_was_cut_off(client: OpenAI) -> None:
    cut = client.responses.create(model=NAME, input="größer?", max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    with client.responses.stream(model=NAME, input="größer?", max_output_tokens=3) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"previous_response_id": "resp_1"}, 404, "responses are not stored here"),
        (
            {"input": [{"type": "web_search_call", "id": "x"}]},
            400,
            "an item of type 'web_search_call' is not supported",
        ),
        ({"conversation": "conv_1"}, 400, "conversation = "),
        ({"text": {"format": {"type": "json_object"}}}, 400, "text.format = "),
    ],
)
def test_refusals(client: OpenAI, changes: Any, status: int, told: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(**{"model": NAME, "input": "a", **changes})
    assert refused.value.status_code == status
    assert told in str(refused.value)


def test_call_the_only_item(server: Running, client: OpenAI) -> None:
    """A turn that is a call alone has no empty message."""
    server.engine.script = lambda request: QWEN.render_turn("", "", [CALL])
    try:
        for answer in (
            client.responses.create(model=NAME, input="a", tools=[FUNCTION]),
            client.responses.stream(model=NAME, input="a", tools=[FUNCTION]).__enter__().get_final_response(),
        ):
            assert [item.type for item in answer.output] == ["function_call"]
    finally:
        server.engine.script = lambda request: SAID


def test_a_warning_holds_the_clients_words_as_a_header_can(server: Running) -> None:
    asked = {"model": NAME, "input": "here", "tools": [{"type": "größe\r\nx-forged: 1\x15" + "a" * 200}] * 9}
    answer = httpx.post(f"{server.url}/v1/responses", json=asked)
    assert answer.status_code == 200, answer.text
    warning = answer.headers["x-etude-warning"]
    assert warning.startswith("tools left out: gr??e??x-forged: 1?aaa")
    assert len(warning) == 1000
    assert "x-forged" not in answer.headers
