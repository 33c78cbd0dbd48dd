"""Cancelled at each moment at which it waits: nothing runs on, turns are whole, and it can go on to the same end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import COMPACT, act, repository, run
from tests.harness.test_loop import Slow
from tests.harness.test_sessions import BOX, FULL, HARNESS, REQUEST, STEPS, Following

from etude.harness import (
    ChatSession,
    Conversation,
    Message,
    Observer,
    Outcome,
    Role,
    Turn,
)
from etude.harness.sessions import SessionRecord, load_session
from etude.trace import StopCause, ToolEvent, TraceUsage
from etude.trace.conversation.openai_messages import NOT_CARRIED_OUT, openai_messages

INTERRUPTED = FULL.wording["interrupted"]


class _Repeating(Following):
    """Does again what it is told was interrupted, as an agent would."""

    def counts(self, messages: Sequence[Message], place: int) -> bool:
        return not _interrupted(messages, place)


def _interrupted(messages: Sequence[Message], place: int) -> bool:
    turn = messages[place].turn
    assert turn is not None
    answers = messages[place + 1 : place + 1 + len(turn.calls)]
    assert [answer.call for answer in answers] == list(turn.calls), "every call is answered, in order"
    return any(answer.text == INTERRUPTED for answer in answers)


class _Waiting(Observer):
    """Each of its hooks is a moment at which the run waits."""

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        await asyncio.sleep(0)

    async def tool(self, event: ToolEvent) -> None:
        await asyncio.sleep(0)

    async def answered(
        self, turn: Turn, tools: Sequence[ToolEvent], told: Sequence[Message], usage: TraceUsage
    ) -> None:
        await asyncio.sleep(0)

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        await asyncio.sleep(0)


async def _nothing_known(folder: Path) -> list[str]:
    await asyncio.sleep(0)
    return []


async def _until(task: asyncio.Task[Outcome], moments: int) -> int:
    """Lets the loop go round so often, or until the task is done; how often it went."""
    for moment in range(moments):
        if task.done():
            return moment
        await asyncio.sleep(0)
    return moments


def _repeating() -> _Repeating:
    return _Repeating([*STEPS, STEPS[-1]])


def _whole_turns(conversation: Conversation | None) -> None:
    while conversation is not None:
        for place, message in enumerate(conversation.messages):
            if message.role is Role.ASSISTANT:
                _interrupted(conversation.messages, place)
        conversation = conversation.parent


@in_loop
async def test_cancelled_at_any_moment_it_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While another process works the loop goes round for nothing, thousands of times.
    monkeypatch.setattr("etude.harness.session.searcher_of", lambda files: None)
    for asked in ("git_status", "recent_files"):
        monkeypatch.setattr(f"etude.harness.session.{asked}", _nothing_known)
    folder = repository(tmp_path / "repository")

    async def uncancelled() -> tuple[str, int]:
        async with ChatSession(folder, _repeating(), HARNESS, BOX, observer=_Waiting()) as session:
            task = asyncio.create_task(session.run(REQUEST))
            moments = await _until(task, 10_000)
            outcome = await task
            assert outcome.final_text == "it is done"
            assert outcome.usage.summaries >= 1
            return await session.diff(), moments

    async def cancelled(moment: int, expected: str) -> StopCause | None:
        place, copy = tmp_path / f"session-{moment}", tmp_path / f"disk-{moment}"
        record = SessionRecord.begin(place)
        async with ChatSession(folder, _repeating(), HARNESS, BOX, observer=_Waiting(), record=record) as session:
            task = asyncio.create_task(session.run(REQUEST))
            await _until(task, moment)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing runs on"
            _whole_turns(session.conversation)
            # A copy goes on from the disk, as it is now; this one goes on here.
            shutil.copytree(place, copy)
            saved = load_session(copy)
            _whole_turns(saved.conversation)
            stop = StopCause(saved.stop) if saved.stop else None
            if task.cancelled():
                assert session.conversation is None or stop is StopCause.CANCELLED
                here = await session.run("go on, please")
                assert here.final_text == "it is done"
            assert await session.diff() == expected
        async with ChatSession(folder, _repeating(), HARNESS, BOX, saved=saved) as again:
            assert not again.interrupted, "nobody killed it"
            if again.conversation is None or again.unfinished:
                outcome = await (again.run(REQUEST) if again.conversation is None else again.resume())
                assert (outcome.final_text, outcome.failed_by_us) == ("it is done", False)
                assert await again.diff() == expected
                assert outcome.usage.turns >= len(STEPS)
        return stop

    expected, moments = await uncancelled()
    assert moments > 50
    stops = [await cancelled(moment, expected) for moment in range(moments + 1)]
    assert stops.count(StopCause.CANCELLED) > 50
    assert stops[-1] is StopCause.REPLIED


@in_loop
async def test_what_was_interrupted_is_no_event_of_the_run_and_counts_for_nothing() -> None:
    outcome = Outcome(COMPACT.open("make check pass"))
    task = asyncio.create_task(act(["> list\n> shell ls\n> list"], workspace=Slow({}), outcome=outcome))
    while not outcome.tools:  # noqa: ASYNC110 - what is cancelled must not know
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert outcome.stop is StopCause.CANCELLED
    assert [event.name for event in outcome.tools] == ["list"]
    assert outcome.usage.tool_calls == 1
    # The compact profile has no word of its own for it.
    assert [message.text for message in outcome.conversation.messages[-3:]] == ["none", "cut", "cut"]


@in_loop
async def test_a_turn_that_was_cut_off_and_interrupted_is_told_so() -> None:
    class Cancelling(Observer):
        async def turn(self, conversation: Conversation, turn: Turn) -> None:
            raise asyncio.CancelledError

    outcome = Outcome(FULL.open(REQUEST))
    cut = act([Turn("well, let", cut_off=True)], profile=FULL, observer=Cancelling(), outcome=outcome)
    await asyncio.gather(cut, return_exceptions=True)
    assert outcome.conversation.messages[-1] == Message(Role.USER, FULL.cut_off)
    assert (await act(["that is it"], profile=FULL, outcome=outcome)).final_text == "that is it"


def test_an_endpoint_is_shown_an_answer_to_each_call_where_anything_follows() -> None:
    conversation = run(["> list\n> finish\n> list"]).conversation
    roles = [message["role"] for message in openai_messages(conversation)]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    conversation.messages.append(Message(Role.USER, "go on"))
    said = openai_messages(conversation)
    assert [message["role"] for message in said] == [*roles, "tool", "user"]
    assert said[-2]["content"] == NOT_CARRIED_OUT
    called = [call["id"] for call in said[2]["tool_calls"]]
    assert [message["tool_call_id"] for message in said[3:6]] == called
