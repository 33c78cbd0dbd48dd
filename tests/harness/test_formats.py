"""The policies that own ids, in every published format: exact prefixes, malformed calls, and templates that rewrite."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.policy import PolicyContract
from tests.contract.sandbox.support import in_loop
from tests.harness import parts
from tests.harness.parts import FULL, ScriptedEngine, playing
from tests.text.formats.real import every_real, loaded
from tests.text.formats.tiny import SPECIALS, Letters

from etude.engine.protocol import EngineError
from etude.harness import Budgets, Message, RecordingPolicy, Role, ScriptedPolicy, TokenPolicy, TokenSampling
from etude.text.formats import FORMATS, KimiK2Format, Qwen3Format
from etude.trace import SegmentKind, StopCause, Trace, TraceBuilder

PROFILE = replace(FULL, system="You mend code.")
ROOMY = Budgets(turn_tokens=5000, tokens=50_000)
TOOLS = [schema.openai() for schema in PROFILE.schemas()]
SCHEMAS = {schema.name: schema.call_schema() for schema in PROFILE.schemas()}
LETTERS = Letters()
FORMS = {name: make(LETTERS, TOOLS) for name, make in FORMATS.items() if name != "qwen2.5"}  # here it is Qwen3's
every_format = pytest.mark.parametrize("name", FORMS)


def token_policy(form, engine, recorder=None, context=1 << 20):
    sampling = TokenSampling(context=context)
    return TokenPolicy(engine, form, PROFILE.schemas(), sampling, recorder or TraceBuilder(), conversation="r")


def turn_of(form, action) -> list[int]:
    if isinstance(action, str):
        return form.render_turn("", action, [])
    return form.render_turn("", "", [form.format_call(*action, SCHEMAS[action[0]])])


class TestInEveryFormat(PolicyContract):
    @pytest.fixture(params=FORMS)
    def form(self, request):
        return FORMS[request.param]

    @pytest.fixture
    def make(self, form):
        @asynccontextmanager
        async def open_policy(actions):
            yield token_policy(form, ScriptedEngine(playing([turn_of(form, action) for action in actions])))

        return open_policy

    @pytest.fixture
    def broken(self, form):
        def fail(request):
            raise EngineError("lost")

        @asynccontextmanager
        async def open_policy():
            yield token_policy(form, ScriptedEngine(fail))

        return open_policy

    def test_a_call_and_its_answer(self, make):
        """A call in these formats is some hundred letters long."""
        super().test_a_call_and_its_answer(roomy(make))

    def test_several_calls_in_one_turn(self, form):
        turn = form.render_turn("", "both", [form.format_call("list", {}, SCHEMAS["list"], n) for n in range(2)])
        policy = token_policy(form, ScriptedEngine(playing([turn])))
        found = asyncio.run(policy.act(PROFILE.open("x"), max_tokens=999))
        assert [(call.name, call.arguments, call.id) for call in found.calls] == [
            ("list", {}, "1.0"),
            ("list", {}, "1.1"),
        ]


def roomy(make):
    @asynccontextmanager
    async def open_policy(actions):
        async with make(actions) as policy:
            act = policy.act
            policy.act = lambda conversation, *, max_tokens: act(conversation, max_tokens=max_tokens * 20)
            yield policy

    return open_policy


ids = st.lists(
    st.one_of(
        st.integers(0, 255),
        st.sampled_from([LETTERS.special(name) for name in SPECIALS]),
        st.sampled_from(LETTERS.encode('{"name": }\n')),
    ),
    min_size=1,
    max_size=25,
)
turns = st.lists(st.tuples(ids, st.text(max_size=9), st.booleans()), min_size=1, max_size=6)


@every_format
@settings(max_examples=20, deadline=None)
@given(turns=turns)
def test_each_prompt_extends_the_last_one_exactly(name, turns):
    prompts_extend_each_other(FORMS[name], turns)


numbers = st.lists(st.integers(-len(SPECIALS), 2**20), min_size=1, max_size=25)


@every_real
@settings(max_examples=25, deadline=None)
@given(turns=st.lists(st.tuples(numbers, st.text(max_size=9), st.booleans()), min_size=1, max_size=6))
def test_each_prompt_extends_the_last_one_exactly_over_a_real_vocabulary(name, file, turns):
    """Negative numbers stand for special tokens, which few others would hit."""
    tokenizer = loaded(file)
    special = [token for text in SPECIALS if (token := tokenizer.special(text)) is not None]

    def token_of(number: int) -> int:
        return number % tokenizer.vocab_size if number >= 0 else special[number % len(special)]

    form = FORMATS[name](tokenizer, TOOLS)
    prompts_extend_each_other(form, [([token_of(n) for n in sampled], said, asked) for sampled, said, asked in turns])


def prompts_extend_each_other(form, turns):
    engine = ScriptedEngine(playing([sampled for sampled, *_ in turns]))
    recorder = TraceBuilder()
    policy = token_policy(form, engine, recorder)
    conversation = PROFILE.open("mend it")

    async def play() -> None:
        for _, said, asked in turns:
            length = policy.tokens(conversation)
            turn = await policy.act(conversation, max_tokens=30)
            assert length == len(engine.requests[-1].prompt)
            conversation.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
            conversation.messages += [Message(Role.TOOL, said, call=call) for call in turn.calls]
            if asked or not turn.calls:
                conversation.messages.append(Message(Role.USER, said))

    asyncio.run(play())
    (segment,) = recorder.segments()
    mask = np.zeros(len(segment.tokens), bool)
    assert engine.requests[0].prompt.tolist() == form.opening("You mend code.", "mend it")
    for request, generation in zip(engine.requests, engine.generations, strict=True):
        before, sampled = len(request.prompt), len(generation.tokens)
        assert segment.tokens[:before].tolist() == request.prompt.tolist()
        assert segment.tokens[before : before + sampled].tolist() == generation.tokens.tolist()
        mask[before : before + sampled] = True
    assert segment.sampled.tolist() == mask.tolist()


@pytest.mark.parametrize(("ended", "added"), [("<|observation|>", []), ("<|user|>", ["<|observation|>"])])
def test_a_turn_that_ended_with_the_next_message_shares_its_first_id(ended, added):
    form = FORMS["glm4.5"]
    sampled = [*turn_of(form, ("list", {}))[:-1], LETTERS.special(ended)]
    engine = ScriptedEngine(playing([sampled, turn_of(form, "well")]))
    policy = token_policy(form, engine)
    conversation = PROFILE.open("mend it")
    turn = asyncio.run(policy.act(conversation, max_tokens=99))
    conversation.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
    conversation.messages.append(Message(Role.TOOL, "calc.py", call=turn.calls[0]))
    asyncio.run(policy.act(conversation, max_tokens=99))
    first, second = (request.prompt.tolist() for request in engine.requests)
    assert second[: len(first) + len(sampled)] == [*first, *sampled], "nothing sampled is taken away"
    rest = LETTERS.decode(second[len(first) + len(sampled) :])
    assert rest == "".join(added) + "\n<tool_response>\ncalc.py\n</tool_response><|assistant|>"


@every_format
def test_the_prompt_declares_the_tools_that_this_conversation_has(name):
    """A task may take tools away which others of its run have: the format is made for the run."""
    fewer = PROFILE.without(["shell", "bash"])
    prompts = []
    for schemas in (PROFILE.schemas(), fewer.schemas()):
        engine = ScriptedEngine(playing([turn_of(FORMS[name], "well")]))
        policy = TokenPolicy(engine, FORMS[name], schemas, TokenSampling(1 << 20), TraceBuilder(), conversation="r")
        asyncio.run(policy.act(fewer.open("mend it"), max_tokens=999))
        prompts.append(engine.requests[0].prompt.tolist())
    only = FORMATS[name](LETTERS, [schema.openai() for schema in fewer.schemas()])
    assert prompts[1] == only.opening("You mend code.", "mend it")
    assert (prompts[0] == prompts[1]) == (name == "deepseek-v3"), "V3's template has no place for tools"


def run(form, written):
    """The loop over the sample workspace, with turns as sampled ids."""
    engine = ScriptedEngine(playing(written))
    recorder = TraceBuilder()
    outcome = parts.run(token_policy(form, engine, recorder), ROOMY, profile=PROFILE)
    return outcome, recorder.segments()


@every_format
def test_a_malformed_call_comes_back_as_an_error_and_counts(name):
    form = FORMS[name]
    good = turn_of(form, ("read", {"path": "calc.py"}))
    broken = form.render_turn("", "", [form.format_call("read", {"path": "calc.py"}, SCHEMAS["read"])[:-6]])
    unfit = form.render_turn(
        "", "", [form.format_call("read", {"path": "calc.py"}, SCHEMAS["read"]).replace("path", "pth")]
    )
    outcome, segments = run(form, [broken, unfit, good, turn_of(form, ("finish", {}))])
    assert outcome.stop is StopCause.FINISHED
    assert [(event.name, event.ok, event.valid) for event in outcome.tools] == [
        ("read", False, False),
        ("read", False, False),
        ("read", True, True),
        ("finish", True, True),
    ]
    assert outcome.usage.invalid_calls == 2
    assert outcome.tools[0].output.startswith("The call could not be read: ")
    assert outcome.tools[1].output.startswith("The call to read was not carried out: ")
    assert outcome.tools[0].arguments == form.parse(broken).calls[0].raw
    # Byte for byte: the ids of the malformed call are in the trace as they were sampled.
    (segment,) = segments
    assert segment.tokens[segment.sampled].tolist()[: len(broken)] == broken


@every_format
def test_a_call_that_was_cut_off_or_left_open_is_not_carried_out(name):
    form = FORMS[name]
    whole = turn_of(form, ("read", {"path": "calc.py"}))
    half = whole[: len(whole) // 2]
    policy = token_policy(form, ScriptedEngine(playing([half, [*half, form.stop_ids[0]]])))
    cut = asyncio.run(policy.act(PROFILE.open("x"), max_tokens=999))
    assert (cut.cut_off, [call.problem for call in cut.calls]) == (True, ["cut off"])
    left_open = asyncio.run(policy.act(PROFILE.open("y", "other"), max_tokens=999))
    assert (left_open.cut_off, [call.problem for call in left_open.calls]) == (False, ["it has no end"])


@every_format
def test_demonstrations_are_spelled_in_the_format(name):
    form = FORMS[name]
    # Without marks, only what begins like a call is one.
    unknown = '{"name": "fly away"}' if name == "llama3" else "fly away"
    steps = ["I look\n> read calc.py 1 2\n> list", f"> {unknown}", "> finish done"]
    recorder = TraceBuilder()
    policy = RecordingPolicy(ScriptedPolicy(steps, PROFILE), form, PROFILE.schemas(), 1 << 20, recorder)
    outcome = parts.run(policy, ROOMY, profile=PROFILE)
    assert outcome.stop is StopCause.FINISHED
    assert [(event.name, event.ok) for event in outcome.tools] == [
        ("read", True),
        ("list", True),
        (outcome.tools[2].name, False),
        ("finish", True),
    ]
    said = LETTERS.decode(recorder.segments()[0].tokens.tolist())
    assert "fly away" in said, "what did not parse goes in as it was written"
    if name == "kimi-k2":
        assert [f"functions.{tool}" in said for tool in ("read:0", "list:1", "finish:3")] == [True] * 3


def thought(form, text, *calls):
    return form.render_turn("Hm.", text, [form.format_call(*call, SCHEMAS[call[0]]) for call in calls])


@pytest.mark.parametrize("make", [Qwen3Format, KimiK2Format], ids=["qwen3", "kimi-k2"])
@in_loop
async def test_a_template_that_rewrites_history_begins_a_segment_that_is_masked_and_counted(make):
    form = make(LETTERS, TOOLS, thinking=True, history="template")
    look, answer, close = thought(form, "", ("list", {})), thought(form, "It is so."), thought(form, "", ("finish", {}))
    engine = ScriptedEngine(playing([look, answer, close]))
    recorder = TraceBuilder()
    policy = token_policy(form, engine, recorder)
    conversation = PROFILE.open("mend it")
    lengths = []
    for said in (None, "go on", None):
        turn = await policy.act(conversation, max_tokens=999)
        conversation.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
        conversation.messages += [Message(Role.TOOL, "calc.py", call=call) for call in turn.calls]
        conversation.messages += [Message(Role.USER, said)] if said else []
        lengths.append(policy.tokens(conversation))
    assert lengths[:2] == [len(request.prompt) for request in engine.requests[1:]]
    first, second = recorder.segments()
    assert (first.kind, second.kind, second.parent) == (SegmentKind.START, SegmentKind.REWRITTEN, first.id)
    # In the chain of calls nothing is rewritten: the second turn was sampled behind the first one's thinking.
    assert first.tokens[first.sampled].tolist() == [*look, *answer]
    said = LETTERS.decode(second.tokens.tolist())
    assert said.count("Hm.") == 1
    assert said.count("It is so.") == 1
    assert second.tokens[second.sampled].tolist() == close
    # The new prompt is a context of its own: every position's experts are asked for again.
    assert [request.experts_from for request in engine.requests] == [
        0,
        len(engine.requests[0].prompt) + len(look) - 1,
        0,
    ]
    assert second.experts is not None
    assert (second.experts[:-1] != 0xFFFF).all()
    trace = Trace("t", "task", "train", "g", 0, "model", 0, segments=[first, second])
    assert trace.rewrites == 1


def test_without_thinking_there_is_nothing_to_rewrite():
    form = Qwen3Format(LETTERS, TOOLS, history="template")
    outcome, segments = run(form, [form.render_turn("", "Let me", [])[:-1], turn_of(form, ("finish", {}))])
    assert outcome.stop is StopCause.FINISHED
    assert outcome.conversation.messages[3].text == PROFILE.cut_off
    assert [segment.kind for segment in segments] == [SegmentKind.START]


def test_a_history_that_was_not_witnessed_is_shown_as_the_template_shows_it():
    form = Qwen3Format(LETTERS, TOOLS, history="template")
    first = asyncio.run(
        token_policy(form, ScriptedEngine(playing([thought(form, "", ("list", {}))]))).act(
            PROFILE.open("x"), max_tokens=999
        )
    )
    history = [Message(Role.ASSISTANT, turn=first), Message(Role.TOOL, "calc.py", call=first.calls[0])]
    for more, thoughts in (([], 1), ([Message(Role.USER, "go on")], 0)):
        engine = ScriptedEngine(playing([form.render_turn("", "ok", [])]))
        conversation = PROFILE.open("x")
        conversation.messages += [*history, *more]
        asyncio.run(token_policy(form, engine).act(conversation, max_tokens=9))
        assert LETTERS.decode(engine.requests[0].prompt.tolist()).count("Hm.") == thoughts
