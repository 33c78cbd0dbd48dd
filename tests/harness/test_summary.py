"""Self-summaries at their edges: in a burst of calls, empty, too long, thought about, interrupted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness import parts
from tests.harness.parts import COMPACT, FULL, ScriptedEngine, act, compact_format, playing, written

from etude.engine.protocol import EngineError
from etude.harness import (
    Budgets,
    ContextFull,
    Conversation,
    Message,
    Observer,
    Outcome,
    OverlayWorkspace,
    Role,
    ScriptedPolicy,
    TokenPolicy,
    TokenSampling,
    Turn,
    profile_of,
)
from etude.harness.context.profile import MOST_READ, compaction_request
from etude.recipe.acting import HarnessRecipe
from etude.trace import SegmentKind, StopCause, TraceBuilder

FORM = compact_format()
run = partial(parts.run, profile=FULL)


def trigger(more: int) -> int:
    return ScriptedPolicy([], FULL).tokens(FULL.open("make check pass")) + more


def token_policy(engine, recorder, context=1 << 16) -> TokenPolicy:
    return TokenPolicy(engine, FORM, COMPACT.schemas(), TokenSampling(context), recorder, conversation="r")


def tokens_of(turns, budgets, *, context=1 << 16):
    """The loop over sampled turns; `turns` are ids."""
    engine, recorder = ScriptedEngine(playing(turns)), TraceBuilder()
    policy = token_policy(engine, recorder, context)
    return parts.run(policy, budgets), recorder.segments(), engine


def test_the_new_context_names_what_was_read_and_what_was_edited():
    steps = ["> read check.py\n> read calc.py\n> read pack/other.py", "> delete pack/other.py", "so far", "> finish"]
    outcome = run([*steps[:1], "> edit calc.py 3 return max(a, b)", *steps[1:]], Budgets(summary_trigger=trigger(64)))
    said = outcome.conversation.messages[1].text
    assert "\nso far\n" in said
    assert "Files edited so far: calc.py pack/other.py. Files read so far: check.py calc.py. Jobs" in said


def test_of_very_many_files_the_last_ones_are_named():
    files = {f"f{number}.py": b"x = 1\n" for number in range(MOST_READ + 5)}
    steps = ["\n".join(f"> read {path}" for path in files), "so far", "> finish"]
    said = (
        run(steps, Budgets(summary_trigger=trigger(20)), workspace=OverlayWorkspace(files))
        .conversation.messages[1]
        .text
    )
    assert f" f{MOST_READ + 4}.py (and 5 before)." in said
    assert " f4.py" not in said


def test_a_trigger_in_a_burst_waits_until_all_its_calls_are_answered():
    steps = [written("read calc.py", "read check.py", "list", "read calc.py"), written(text="seen"), written("finish")]
    budgets = Budgets(summary_trigger=len(FORM.opening(COMPACT.system_text(), "make check pass")) + 30)
    outcome, (first, second), engine = tokens_of(steps, budgets)
    assert (outcome.stop, outcome.usage.summaries) == (StopCause.FINISHED, 1)
    old = outcome.conversation.parent
    assert old is not None
    roles = [message.role for message in old.messages[2:]]
    assert roles == [Role.ASSISTANT, *[Role.TOOL] * 4, Role.USER, Role.ASSISTANT]
    outputs = [event.output for event in outcome.tools[:4]]
    asked = [*FORM.tool_outputs(outputs)[:-1], *FORM.user_message(COMPACT.summary_request)]
    assert engine.requests[1].prompt.tolist()[-len(asked) :] == asked
    assert (first.kind, second.kind) == (SegmentKind.START, SegmentKind.SUMMARY)
    assert first.tokens[first.sampled].tolist() == [*steps[0], *steps[1]]


def test_an_empty_summary_goes_on_and_is_seen():
    outcome = run(["> read calc.py", "", "> finish"], Budgets(summary_trigger=trigger(10)))
    assert (outcome.stop, outcome.usage.empty_summaries) == (StopCause.FINISHED, 1)
    assert "so far:\n(you wrote none)\n" in outcome.conversation.messages[1].text
    compact = run(["> read calc.py", "", "> finish"], Budgets(summary_trigger=20), profile=COMPACT)
    assert compact.conversation.messages[1].text.startswith("make check pass\nnote 1 \nedit none\n")


def test_a_summary_that_is_all_thinking_or_calls_is_an_empty_one():
    think = FORM.tokenizer.special.think
    budgets = Budgets(summary_trigger=40, turns=9)
    for summary in (
        FORM.render_turn("", "", ["list"]),
        [think, *FORM.tokenizer.encode("make check"), FORM.stop_ids[0]],
    ):
        outcome, _, _ = tokens_of([written("read calc.py"), summary, written("finish")], budgets)
        assert (outcome.stop, outcome.usage.empty_summaries) == (StopCause.FINISHED, 1)
        assert outcome.conversation.messages[1].text.startswith("make check pass\nnote 1 \nedit none\n")


def test_a_summary_that_its_limit_cuts_off_is_cut_visibly():
    long = written(text="calc.py line 3 " * 30)
    turns = [written("read calc.py"), long, written("finish")]
    outcome, segments, _ = tokens_of(turns, Budgets(summary_trigger=40, summary_tokens=12))
    assert (outcome.stop, outcome.usage.cut_summaries) == (StopCause.FINISHED, 1)
    assert outcome.usage.summary_tokens == 12
    assert segments[0].tokens.tolist()[-12:] == long[:12]
    steps = ["> read calc.py", Turn("the plan is", sampled_tokens=3, cut_off=True), "> finish"]
    said = run(steps, Budgets(summary_trigger=trigger(10))).conversation.messages[1].text
    assert "\nthe plan is\n[it was cut off here, at its token limit]\n" in said


def test_a_summary_that_would_outgrow_the_window_is_cut_off_at_it():
    turns = [written("read calc.py"), written(text="calc.py line 3 " * 60), written("finish")]
    outcome, segments, engine = tokens_of(turns, Budgets(summary_trigger=40, summary_tokens=400), context=130)
    assert (outcome.stop, outcome.usage.cut_summaries) == (StopCause.FINISHED, 1)
    assert all(len(request.prompt) + request.sampling.max_tokens <= 130 for request in engine.requests)
    assert len(segments[0].tokens) == 130


class _Narrow(ScriptedPolicy):
    """Of a window that holds so much, whatever the limit of a summary says."""

    window = 0

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        if self.tokens(conversation) > self.window:
            raise ContextFull(f"more than {self.window} tokens")
        return await super().act(conversation, max_tokens=max_tokens)


def test_a_summary_longer_than_the_window_ends_with_a_typed_stop():
    policy = _Narrow(["> read calc.py", "line " * 300, "> finish"], FULL)
    policy.window = trigger(200)
    outcome = run(policy, Budgets(summary_trigger=trigger(10)))
    assert (outcome.stop, outcome.usage.summaries) == (StopCause.CONTEXT, 1)
    assert outcome.stop.truncated
    assert outcome.usage.compression < 1, "it is seen that it was no compression"


def test_no_room_for_the_request_is_a_typed_stop_too():
    turns = [written("read calc.py"), written(text="x"), written("finish")]
    opened = len(FORM.opening(COMPACT.system_text(), "make check pass"))
    read = len(FORM.tool_outputs(["1 # the larger of two\n2 def larger(a, b):\n3     return min(a, b)"]))
    room = opened + len(turns[0]) + read + 2
    outcome, _, _ = tokens_of(turns, Budgets(summary_trigger=10), context=room)
    assert (outcome.stop, outcome.usage.summaries) == (StopCause.CONTEXT, 0)
    assert outcome.conversation.messages[-1].role is Role.TOOL, "a request that nobody answered is no part of it"


def test_what_summaries_cost_and_save_is_counted():
    steps = ["> read calc.py", "one two", "> read calc.py", "three", "> read check.py\n> read calc.py", "", "> finish"]
    outcome = run(steps, Budgets(summary_trigger=trigger(10)))
    usage = outcome.usage
    assert (usage.summaries, usage.empty_summaries, usage.summary_tokens) == (3, 1, 3)
    assert usage.rereads == 2, "calc.py, in each of two later contexts"
    assert usage.context_before > 3 * trigger(10)
    assert usage.context_after > 3 * trigger(0)
    assert usage.compression == usage.context_before / usage.context_after
    assert Outcome(Conversation("x")).usage.compression == 0


def test_the_baseline_asks_with_a_long_instruction_and_changes_nothing_else():
    recipe = HarnessRecipe(profile="full", compaction="prompt")
    profile = profile_of(recipe)
    assert profile == replace(FULL, summary_request=compaction_request())
    assert profile_of(HarnessRecipe(profile="full")) is FULL
    assert len(compaction_request()) > 5 * len(FULL.summary_request)
    outcome = run(
        ["> read calc.py", "1. Task: check", "> finish"], Budgets(summary_trigger=trigger(10)), profile=profile
    )
    old = outcome.conversation.parent
    assert old is not None
    assert old.messages[-2].text == compaction_request()
    assert "\n1. Task: check\n" in outcome.conversation.messages[1].text


class _Cancelling(Observer):
    """Cancels the run when the summary is there and nobody has heard of it."""

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        if conversation.messages[-2].text in (FULL.summary_request, COMPACT.summary_request):
            raise asyncio.CancelledError


@in_loop
async def test_an_interrupted_summary_leaves_the_conversation_as_it_was():
    engine = ScriptedEngine(playing([written("read calc.py"), written(text="seen"), written("finish")]))
    recorder = TraceBuilder()
    policy = token_policy(engine, recorder)
    outcome = Outcome(COMPACT.open("make check pass"))
    with pytest.raises(asyncio.CancelledError):
        await act(policy, Budgets(summary_trigger=40), observer=_Cancelling(), outcome=outcome)
    messages = outcome.conversation.messages
    assert [message.role for message in messages[2:]] == [Role.ASSISTANT, Role.TOOL]
    messages += [Message(Role.USER, "go on"), Message(Role.USER, "please")]
    await act(policy, outcome=outcome)
    first, second = recorder.segments()
    # The ids of the summary stay where they were sampled; what goes on without it is a context of its own.
    assert (first.kind, second.kind, second.parent) == (SegmentKind.START, SegmentKind.FORK, first.id)
    assert second.tokens[second.sampled].tolist() == written("finish")
    said = FORM.tokenizer.decode(second.tokens.tolist())
    assert "go on" in said
    assert "seen" not in said


def test_a_summary_whose_engine_fails_can_be_asked_for_again():
    def fail(request):
        if len(engine.generations) == 1:
            engine.generations.append(engine.generations[0])
            raise EngineError("lost")
        return next(turns)

    turns = iter([written("read calc.py"), written(text="seen"), written("finish")])
    engine, recorder = ScriptedEngine(fail), TraceBuilder()
    policy = token_policy(engine, recorder)
    lost = parts.run(policy, Budgets(summary_trigger=40))
    again = parts.run(policy, Budgets(summary_trigger=40), outcome=Outcome(lost.conversation))
    assert (lost.stop, lost.usage.summaries) == (StopCause.ERROR, 0)
    assert (again.stop, again.usage.summaries) == (StopCause.FINISHED, 1)
    assert [segment.kind for segment in recorder.segments()] == [SegmentKind.START, SegmentKind.SUMMARY]
