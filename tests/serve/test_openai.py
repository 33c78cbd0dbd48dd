"""Chat completions and completions, asked with OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.serve.running import LETTERS, NAME, QWEN, Running, running, scripted

SYSTEM = {"role": "system", "content": "You mend code."}
USER = {"role": "user", "content": "größer? 変"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Show a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "first": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
]
CALL = '\n{"name": "read", "arguments": {"path": "größe.py", "first": 3}}\n'
SAID = QWEN.render_turn("It is\n\nsmall.", "I read 変 it.\n", [CALL, '\n{"name": "read", oops\n'])


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(scripted(lambda request: SAID)) as found:
        yield found


@pytest.fixture
def client(server: Running) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_whole_answer(server: Running, client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=[SYSTEM, USER],  # type: ignore[list-item]
        tools=TOOLS,
        seed=11,
        temperature=0.5,
        top_p=0.25,
        max_tokens=500,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("I read 変 it.\n", "It is\n\nsmall.")  # type: ignore[attr-defined]
    first, second = message.tool_calls or []
    assert (first.function.name, json.loads(first.function.arguments)) == ("read", {"path": "größe.py", "first": 3})  # type: ignore[union-attr]
    assert second.id != first.id
    assert (second.function.name, second.function.arguments) == ("read", '\n{"name": "read", oops\n')  # type: ignore[union-attr]
    assert answer.choices[0].finish_reason == "tool_calls"
    request = server.engine.requests[-1]
    assert request.prompt.tolist() == QWEN.offering(TOOLS).opening("You mend code.", "größer? 変")
    assert (request.sampling.seed, request.sampling.temperature, request.sampling.max_tokens) == (11, 0.5, 500)
    assert (request.sampling.stop, request.sampling.top_p) == (QWEN.stop_ids, 0.25)
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(request.prompt), len(SAID))
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == len(request.prompt) // 2
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == QWEN.parse(SAID).thinking_tokens
    exact = answer.etude  # type: ignore[attr-defined]
    assert (exact["prompt_token_ids"], exact["token_ids"]) == (request.prompt.tolist(), SAID)
    assert exact["versions"] == [3] * len(SAID)
    assert [round(entry.logprob, 6) for entry in answer.choices[0].logprobs.content] == exact["logprobs"]  # type: ignore[union-attr]


def test_a_streamed_answer_is_the_whole_one(client: OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": [SYSTEM, USER], "tools": TOOLS, "logprobs": True}
    whole = client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    text, thinking, calls, logprobs = "", "", [], []
    finish, usage, exact, chunks = None, None, None, 0
    more = {"stream": True, "stream_options": {"include_usage": True}, "extra_body": {"return_token_ids": True}}
    for chunk in client.chat.completions.create(**asked, **more):
        chunks += 1
        usage = chunk.usage or usage
        exact = getattr(chunk, "etude", exact)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            thinking += getattr(choice.delta, "reasoning_content", None) or ""
            calls += choice.delta.tool_calls or []
            logprobs += choice.logprobs.content if choice.logprobs else []
            finish = choice.finish_reason or finish
    message = whole.choices[0].message
    assert (text, thinking, finish) == (message.content, message.reasoning_content, whole.choices[0].finish_reason)  # type: ignore[attr-defined]
    assert [call.index for call in calls] == [0, 1]
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        (c.function.name, c.function.arguments)  # type: ignore[union-attr]
        for c in message.tool_calls or ()
    ]
    assert [entry.logprob for entry in logprobs] == [entry.logprob for entry in whole.choices[0].logprobs.content]  # type: ignore[union-attr]
    assert (usage, exact) == (whole.usage, whole.etude)  # type: ignore[attr-defined]
    assert chunks > 6, "the text comes in pieces"


def test_a_conversation_with_calls_is_written_as_the_model_wrote_it(server: Running, client: OpenAI) -> None:
    """The client's echo of an answer, thinking and calls included, gives the ids that were sampled."""
    first = client.chat.completions.create(model=NAME, messages=[SYSTEM, USER], tools=TOOLS)  # type: ignore[list-item]
    message = first.choices[0].message
    outputs = [
        {"role": "tool", "tool_call_id": call.id, "content": text}
        for call, text in zip(message.tool_calls or (), ("one", "two"), strict=True)
    ]
    said = [SYSTEM, USER, message.model_dump(exclude_none=True), *reversed(outputs)]
    client.chat.completions.create(model=NAME, messages=said, tools=TOOLS)  # type: ignore[arg-type]
    one, two = (request.prompt.tolist() for request in server.engine.requests[-2:])
    form = QWEN.offering(TOOLS)
    assert two == [*one, *SAID, *form.closing(SAID), *form.tool_outputs(["one", "two"])]


def test_messages_in_an_order_that_no_template_writes(server: Running, client: OpenAI) -> None:
    said: list[Any] = [
        {"role": "developer", "content": "You mend code."},
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "I"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "gone", "arguments": "{}"}}],
        },
        {"role": "user", "content": "stop"},
    ]
    client.chat.completions.create(model=NAME, messages=said)
    prompt = server.engine.requests[-1].prompt.tolist()
    turn = QWEN.render_turn("", "I", [QWEN.format_call("gone", {}, None)])  # type: ignore[arg-type]
    user = QWEN.user_message("two")
    before = QWEN.opening("You mend code.\n\nBe brief.", "one")
    header = len(QWEN.answering)
    outputs = QWEN.tool_outputs(["(not carried out)"])
    expected = before[:-header] + user + turn + QWEN.closing(turn) + outputs[:-header] + QWEN.user_message("stop")
    assert LETTERS.decode(prompt) == LETTERS.decode(expected)


def test_completions(server: Running, client: OpenAI) -> None:
    for prompt in ("größe", list("größe".encode())):
        asked: Any = {"model": NAME, "prompt": prompt, "max_tokens": 30, "logprobs": 1}
        whole = client.completions.create(**asked, extra_body={"return_token_ids": True})
        assert server.engine.requests[-1].prompt.tolist() == list("größe".encode())
        assert whole.choices[0].text == LETTERS.decode(SAID[:30])
        assert whole.choices[0].finish_reason == "length"
        assert whole.etude["token_ids"] == SAID[:30]  # type: ignore[attr-defined]
        parts = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
        assert "".join(part.text for part in parts) == whole.choices[0].text
        tokens = [token for part in parts for token in part.logprobs.tokens]
        assert tokens == whole.choices[0].logprobs.tokens  # type: ignore[union-attr]


@pytest.mark.parametrize("stop", ["d 変", ["nothing", "変 it"], "small"])
def test_stop_texts_end_the_answer(server: Running, client: OpenAI, stop: Any) -> None:
    """A stop text in the answer ends it, and the sampling; thinking is no answer."""
    asked: Any = {"model": NAME, "messages": [SYSTEM, USER], "stop": stop}
    whole = client.chat.completions.create(**asked)
    text = {"d 変": "I rea", "small": "I read 変 it.\n"}.get(str(stop), "I read ")
    assert (whole.choices[0].message.content or "").startswith(text)
    parts = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    if stop != "small":
        assert whole.choices[0].message.content == text
        assert {whole.choices[0].finish_reason, parts[-1].finish_reason} == {"stop"}


def test_no_tools_no_calls(client: OpenAI) -> None:
    """Without tools a call is text: who did not offer any cannot carry it out."""
    answer = client.chat.completions.create(model=NAME, messages=[SYSTEM, USER], tools=TOOLS, tool_choice="none")  # type: ignore[list-item]
    assert answer.choices[0].message.tool_calls is None
    assert "größe.py" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "other"}, "the model 'other' is not served here; there is tiny"),
        ({"messages": [USER, {"role": "assistant", "content": "a"}]}, "the last message must not be the assistant's"),
        ({"messages": [SYSTEM]}, "must begin with a user message"),
        ({"messages": [USER, {"role": "tool", "tool_call_id": "x", "content": ""}]}, "the call 'x' does not follow"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages.0.content: a part of type 'image_url' is not supported, only text",
        ),
        ({"n": 2}, "n = 2 is not supported"),
        ({"tool_choice": {"type": "function", "function": {"name": "read"}}}, "tool_choice = "),
        ({"modalities": ["text", "audio"]}, "modalities = "),
        ({"top_p": 0.0}, "top_p: Input should be greater than 0"),
        ({"temperature": "hot"}, "temperature: Input should be a valid number"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "the maximum context length is 4096"),
    ],
)
def test_what_makes_no_sense_or_is_not_supported_is_refused_in_a_line(client: OpenAI, changes: Any, told: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(**{"model": NAME, "messages": [SYSTEM, USER], **changes})
    assert refused.value.status_code == (404 if "model" in changes else 400)
    assert told in str(refused.value)
    assert refused.value.code == ("context_length_exceeded" if "maximum" in told else refused.value.code)


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
