from __future__ import annotations

import asyncio
import time

import pytest
from tests.harness.chat_server import ChatServer, completion
from tests.harness.parts import FULL, SAMPLE, act

from etude.harness import ChatPolicy, ContextFull, Endpoint, OverlayWorkspace, PolicyError
from etude.trace import StopCause


def run(server: ChatServer, play, **endpoint):
    async def main():
        async with server:
            policy = ChatPolicy(Endpoint(server.url, "tiny", pause_seconds=0.01, **endpoint), FULL.schemas())
            try:
                return await play(policy)
            finally:
                await policy.aclose()

    return asyncio.run(main())


def test_a_whole_run_over_http():
    server = ChatServer(
        [
            completion(calls=[("read", {"path": "calc.py"}), ("grep", {"pattern": "larger"})]),
            completion(raw_calls=[("edit", "{not json"), ("edit", "[1]")]),
            completion(calls=[("edit", {"path": "calc.py", "lines": "3 return max(a, b)"})]),
            completion(text="bye", calls=[("finish", {})]),
        ]
    )
    workspace = OverlayWorkspace(SAMPLE)

    async def play(policy):
        return await act(policy, profile=FULL, workspace=workspace)

    outcome = run(server, play, api_key="key", seed=5)
    assert outcome.stop is StopCause.FINISHED
    assert outcome.final_text == "bye"
    assert [(e.name, e.valid) for e in outcome.tools] == [
        ("read", True), ("grep", True), ("edit", False), ("edit", False), ("edit", True), ("finish", True),
    ]  # fmt: skip
    assert "max(a, b)" in asyncio.run(workspace.diff())
    last = server.requests[-1]
    assert [m["role"] for m in last["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "tool", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert last["messages"][5]["tool_calls"][0]["function"]["arguments"] == "{not json"
    assert last["messages"][3]["tool_call_id"] == last["messages"][2]["tool_calls"][0]["id"]
    assert {tool["function"]["name"] for tool in last["tools"]} == {schema.name for schema in FULL.schemas()}
    assert (last["seed"], server.headers[-1]["authorization"]) == (5, "Bearer key")
    assert outcome.usage.sampled_tokens == 28


def test_an_endpoint_is_not_asked_again_before_it_wants_to_be():
    server = ChatServer([completion(text="hi")], statuses=[429], retry_after="1")

    async def play(policy):
        await policy.act(FULL.open("x"), max_tokens=5)

    begun = time.monotonic()
    run(server, play)
    assert time.monotonic() - begun >= 1


REFUSED_BOUND = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)


def test_an_endpoint_that_knows_the_bound_by_another_name():
    server = ChatServer([completion(text="hi"), completion(text="you")], refusals=[REFUSED_BOUND])

    async def play(policy):
        return [(await policy.act(FULL.open("x"), max_tokens=5)).text for _ in range(2)]

    assert run(server, play, attempts=1) == ["hi", "you"]
    bounds = [{name: value for name, value in body.items() if name.startswith("max_")} for body in server.requests]
    assert bounds == [{"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_completion_tokens": 5}]


def thoughts(server: ChatServer) -> list[dict[str, str]]:
    """What the last request told of thinking, by its name."""
    said = server.requests[-1]["messages"]
    return [{name: m[name] for name in ("reasoning_content", "reasoning") if name in m} for m in said[2:]]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_it_thought_goes_back_under_the_name_it_came(name):
    answers = [
        completion(calls=[("read", {"path": "calc.py"})], **{name: "hmm"}),
        completion(calls=[("list", {})]),
        completion(text="bye"),
    ]

    async def play(policy):
        return await act(policy, profile=FULL)

    server = ChatServer(answers)
    assert run(server, play).stop is StopCause.REPLIED
    assert thoughts(server) == [{name: "hmm"}, {}, {}, {}]
    refusing = ChatServer(answers, refusals=[None, f"Please remove the {name} from your message"])
    assert run(refusing, play, attempts=1).stop is StopCause.REPLIED
    assert thoughts(refusing) == [{}, {}, {}, {}]
    assert len(refusing.requests) == 4, "refused once"


@pytest.mark.parametrize(
    "words",
    [
        "'max_tokens' or 'max_completion_tokens' is too large. This model's maximum context length is 10 tokens",
        "The input (20 tokens) is longer than the model's context length (10 tokens).",
        "the request exceeds the available context size, try increasing it",
        "prompt is too long: 20 tokens > 10 maximum",
        "The input token count (20) exceeds the maximum number of tokens allowed (10).",
    ],
)
def test_a_full_context_in_the_words_of_others(words):
    async def play(policy):
        with pytest.raises(ContextFull):
            await policy.act(FULL.open("x"), max_tokens=5)

    server = ChatServer([], refusals=[words])
    run(server, play)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "not json",
        "{}",
        '{"choices": []}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": {"content": ["a"]}}]}',
        '{"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": "many"}}',
        '{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": Infinity}}',
        "[" * 100_000,
    ],
    ids=range(8),
)
def test_an_answer_that_is_no_completion(answer):
    async def play(policy):
        with pytest.raises(PolicyError):
            await policy.act(FULL.open("x"), max_tokens=5)

    run(ChatServer([answer]), play)


def test_half_a_surrogate_pair_can_be_sent_back():
    answers = [completion(text="\ud800", calls=[("read", {"path": "\udfff"})]), completion(text="fine")]

    async def play(policy):
        return await act(policy, profile=FULL)

    outcome = run(ChatServer(answers), play)
    assert outcome.final_text == "fine"
    assert not outcome.tools[0].valid


def test_thinking_and_cut_off_turns():
    async def play(policy):
        return await policy.act(FULL.open("x"), max_tokens=5)

    turn = run(ChatServer([completion(text="so", finish="length", reasoning_content="hmm hmm")]), play)
    assert (turn.text, turn.thinking, turn.cut_off) == ("so", "hmm hmm", True)
    assert turn.thinking_tokens == 2
