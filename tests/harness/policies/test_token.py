"""What the engine is asked, and what is recorded, for any ids that a model may sample."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import ScriptedEngine, compact_format, playing, written

from etude.harness import Message, Role, TokenPolicy, TokenSampling, load_profile
from etude.trace import SegmentKind, TraceBuilder

FORM = compact_format()
PROFILE = load_profile("compact")
SPECIAL = FORM.tokenizer.special


def make(engine, recorder=None, **sampling):
    sampling = TokenSampling(**{"context": 4096, **sampling})
    return TokenPolicy(engine, FORM, PROFILE.schemas(), sampling, recorder or TraceBuilder(), conversation="r")


ids = st.lists(
    st.one_of(
        st.integers(0, FORM.tokenizer.vocab_size - 1),
        st.sampled_from([SPECIAL.call, SPECIAL.end, SPECIAL.think, SPECIAL.assistant]),
        st.sampled_from(FORM.tokenizer.encode("edit calc.py 3 return a + b read")),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(st.tuples(ids, st.text(max_size=12), st.booleans(), st.booleans()), min_size=1, max_size=8),
    most=st.integers(1, 40),
)
def test_each_prompt_extends_the_last_one_exactly_and_all_is_recorded(turns, most):
    engine = ScriptedEngine(playing([sampled for sampled, *_ in turns]))
    recorder = TraceBuilder()
    policy = make(engine, recorder)
    conversation = PROFILE.open("make check pass")
    expected = FORM.opening(PROFILE.system_text(), "make check pass")
    prompts: list[list[list[int]]] = [[]]

    async def play() -> None:
        nonlocal conversation, expected
        for _, said, asked, summary in turns:
            assert policy.tokens(conversation) == len(expected)
            turn = await policy.act(conversation, max_tokens=most)
            generation = engine.generations[-1]
            assert engine.requests[-1].prompt.tolist() == expected
            prompts[-1].append(expected)
            sampled = generation.tokens.tolist()
            assert turn.sampled_tokens == len(sampled)
            assert turn.thinking_tokens + turn.call_tokens + turn.message_tokens == len(sampled)
            assert turn.cut_off == (SPECIAL.end not in sampled)
            conversation.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
            expected = [*expected, *sampled, *([] if sampled[-1] == SPECIAL.end else [SPECIAL.end])]
            for call in turn.calls:
                conversation.messages.append(Message(Role.TOOL, said, call=call))
            if turn.calls:
                expected += FORM.tool_outputs([said] * len(turn.calls))
            if asked or not turn.calls:
                # Who speaks after a tool takes the place of the assistant's marker.
                if turn.calls:
                    expected.pop()
                conversation.messages.append(Message(Role.USER, said))
                expected += FORM.user_message(said)
            if summary:
                conversation = PROFILE.resume(conversation, summary=said, edited=[], turns_left=3)
                expected = FORM.opening(PROFILE.system_text(), conversation.messages[1].text)
                prompts.append([])

    asyncio.run(play())
    segments = recorder.segments()
    played = [of_segment for of_segment in prompts if of_segment]
    assert len(segments) == len(played)
    generations = iter(engine.generations)
    for number, (segment, of_segment) in enumerate(zip(segments, played, strict=True)):
        assert segment.kind is (SegmentKind.START if number == 0 else SegmentKind.SUMMARY)
        assert segment.parent == (None if number == 0 else number - 1)
        mask = np.zeros(len(segment.tokens), bool)
        for prompt in of_segment:
            generation = next(generations)
            here = slice(len(prompt), len(prompt) + len(generation.tokens))
            assert segment.tokens[: len(prompt)].tolist() == prompt
            assert segment.tokens[here].tolist() == generation.tokens.tolist()
            assert segment.logprobs[here].tolist() == generation.logprobs.tolist()
            assert segment.versions[here].tolist() == generation.versions.tolist()
            mask[here] = True
        assert segment.sampled.tolist() == mask.tolist()
        assert not segment.logprobs[~mask].any()
        assert (segment.versions[~mask] == -1).all()
        # Every position but the very last was fed to the network: its experts are those of that position.
        assert segment.experts is not None
        places = np.arange(len(segment.tokens) - 1)
        assert (segment.experts[:-1] == places[:, None, None]).all()
        assert (segment.experts[-1] == 0xFFFF).all()


@in_loop
async def test_the_engine_is_asked_only_for_experts_that_are_missing():
    engine = ScriptedEngine(playing([written("list")]))
    policy = make(engine)
    conversation = PROFILE.open("make check pass")
    for _ in range(3):
        turn = await policy.act(conversation, max_tokens=20)
        conversation.messages.append(Message(Role.ASSISTANT, turn=turn))
        conversation.messages.append(Message(Role.TOOL, "calc.py", call=turn.calls[0]))
    await policy.close()
    assert [r.experts_from for r in engine.requests] == [
        0,
        *(len(r.prompt) + len(g.tokens) - 1 for r, g in zip(engine.requests[:2], engine.generations, strict=False)),
    ]
    assert {r.conversation for r in engine.requests} == {"r"}
    assert engine.closed == ["r"]
    assert len({r.sampling.seed for r in engine.requests}) == 3


def test_the_same_seed_asks_for_the_same_draws():
    async def seeds(seed: int) -> list[int]:
        engine = ScriptedEngine(playing([written("list")]))
        policy = make(engine, seed=seed)
        await policy.act(PROFILE.open("x"), max_tokens=9)
        return [request.sampling.seed for request in engine.requests]

    assert asyncio.run(seeds(3)) == asyncio.run(seeds(3)) != asyncio.run(seeds(4))


@in_loop
async def test_a_cancelled_turn_is_aborted_on_the_engine_and_can_be_asked_again():
    engine = ScriptedEngine(playing([written("list")]))
    generate = engine.generate

    async def slow(request):
        await asyncio.sleep(60)

    policy = make(engine)
    conversation = PROFILE.open("x")
    engine.generate = slow
    task = asyncio.create_task(policy.act(conversation, max_tokens=5))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.aborted == ["r:0"]
    engine.generate = generate
    assert (await policy.act(conversation, max_tokens=9)).calls[0].name == "list"


def test_a_history_that_was_not_witnessed_is_given_but_not_trained_on():
    engine = ScriptedEngine(playing([written("list")]))
    first = asyncio.run(make(engine).act(PROFILE.open("x"), max_tokens=9))
    conversation = PROFILE.open("x")
    conversation.messages += [
        Message(Role.ASSISTANT, turn=first),
        Message(Role.TOOL, "calc.py", call=first.calls[0]),
        Message(Role.USER, "go on"),
    ]
    recorder = TraceBuilder()
    asyncio.run(make(engine, recorder).act(conversation, max_tokens=9))
    answered = FORM.tool_outputs(["calc.py"])[:-1]
    prompt = [*FORM.opening(PROFILE.system_text(), "x"), *written("list"), *answered, *FORM.user_message("go on")]
    assert engine.requests[-1].prompt.tolist() == prompt
    assert recorder.segments()[0].sampled.sum() == len(engine.generations[-1].tokens)
