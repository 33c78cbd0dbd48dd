"""Answers in pieces: the turn is that of an answer at once, and who watches sees it grow."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.harness.chat_server import ChatServer, completion, pieces
from tests.harness.parts import FULL

from etude.harness import ChatPolicy, ContextFull, Endpoint, PolicyError, Turn
from etude.harness.policies.chat import _turn
from etude.harness.policies.chat_stream import Assembly, Piece, StreamBroken, events

ANSWER = completion(
    text="Two files: é and 💡.",
    calls=[("read", {"path": "calc.py"}), ("grep", {"pattern": "a b"})],
    raw_calls=[("edit", "{not json")],
    finish="tool_calls",
    reasoning_content="hmm, let me look",
)


def act(server: ChatServer, told: list[Piece] | None, **endpoint) -> tuple[Turn, int]:
    async def main() -> tuple[Turn, int]:
        async with server:
            policy = ChatPolicy(Endpoint(server.url, "tiny", pause_seconds=0.01, **endpoint), FULL.schemas())
            policy.on_piece = told.append if told is not None else None
            try:
                conversation = FULL.open("x")
                turn = await policy.act(conversation, max_tokens=50)
                return turn, policy.tokens(conversation)
            finally:
                await policy.aclose()

    return asyncio.run(main())


def test_the_turn_is_the_same_in_pieces_and_at_once() -> None:
    told: list[Piece] = []
    at_once, streamed = ChatServer([ANSWER]), ChatServer([ANSWER])
    assert act(streamed, told) == act(at_once, None)
    assert streamed.requests[0].pop("stream") is True
    assert streamed.requests[0].pop("stream_options") == {"include_usage": True}
    assert streamed.requests == at_once.requests
    said = {kind: "".join(piece.text for piece in told if piece.kind == kind) for kind in ("thinking", "text")}
    assert said == {"thinking": "hmm, let me look", "text": "Two files: é and 💡."}
    assert len([piece for piece in told if piece.kind == "text"]) > 3
    calls = [(piece.place, piece.name) for piece in told if piece.kind == "call"]
    assert list(dict.fromkeys(calls)) == [(0, "read"), (1, "grep"), (2, "edit")]


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.lists(st.tuples(st.sampled_from(["read", "bash"]), st.text(max_size=20)), max_size=3),
    st.integers(1, 9),
)
@settings(max_examples=30, deadline=None)
def test_any_answer_is_put_together_again(text: str, thinking: str, calls, size: int) -> None:
    whole = {"usage": {"completion_tokens": 3}, **completion(text=text, raw_calls=calls, reasoning=thinking)}
    assembly = Assembly(lambda piece: None)
    for event in pieces(whole, size):
        assembly.take(json.loads(json.dumps(event)))
    assert _turn(assembly.whole(), 0, len) == _turn(whole, 0, len)


@pytest.mark.parametrize("streams", ["json", "refused"])
def test_an_endpoint_that_does_not_stream_is_asked_as_ever(streams: str) -> None:
    told: list[Piece] = []
    server = ChatServer([ANSWER], streams=streams)
    assert act(server, told) == act(ChatServer([ANSWER]), None)
    assert told == []
    assert len(server.requests) == (2 if streams == "refused" else 1)


def test_a_torn_stream_is_asked_for_again_and_said_to_be_void() -> None:
    told: list[Piece] = []
    server = ChatServer([ANSWER, ANSWER], streams="torn", holds=9)
    assert act(server, told) == act(ChatServer([ANSWER]), None)
    again = [piece.kind for piece in told].index("again")
    assert "".join(piece.text for piece in told[again:] if piece.kind == "text") == "Two files: é and 💡."


def test_a_busy_endpoint_and_a_full_context_are_told_as_ever() -> None:
    assert act(ChatServer([ANSWER], statuses=[429, 502]), [])[0].thinking == "hmm, let me look"
    with pytest.raises(ContextFull):
        act(ChatServer([], status=400), [])


@in_loop
async def test_who_goes_away_in_the_middle_closes_the_stream() -> None:
    async with ChatServer([ANSWER], holds=9) as server:
        policy = ChatPolicy(Endpoint(server.url, "tiny"), FULL.schemas())
        begun = asyncio.Event()
        policy.on_piece = lambda piece: begun.set()
        acting = asyncio.create_task(policy.act(FULL.open("x"), max_tokens=5))
        await begun.wait()
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
        async with asyncio.timeout(30):
            await server.closed.wait()
        await policy.aclose()


@pytest.mark.parametrize("line", ["data: {", "data: [1]", "data: nothing"])
def test_a_stream_of_something_else_is_broken(line: str) -> None:
    async def lines():
        yield ": a comment"
        yield line

    async def main() -> None:
        async for _ in events(lines()):
            pass

    with pytest.raises(StreamBroken):
        asyncio.run(main())


def test_an_event_that_is_no_completion_is_said() -> None:
    class Odd(ChatServer):
        async def stream(self, answer):
            yield 'data: {"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]}\n\n'

    with pytest.raises(PolicyError, match="not part of a completion"):
        act(Odd([ANSWER]), [])
