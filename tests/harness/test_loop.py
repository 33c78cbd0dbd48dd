from __future__ import annotations

import asyncio

import pytest
from tests.harness.parts import COMPACT, SAMPLE, run

from etude.harness import Budgets, Conversation, OverlayWorkspace, Role
from etude.sandbox.contract import ExecResult
from etude.trace import StopCause


def test_an_agent_that_works_and_finishes():
    workspace = OverlayWorkspace(SAMPLE)
    outcome = run(
        ["> list", "> read calc.py", "> edit calc.py 3 return max(a, b)", "> finish all good"], workspace=workspace
    )
    assert outcome.stop is StopCause.FINISHED
    assert outcome.final_text == "all good"
    assert [event.output for event in outcome.tools] == [
        "calc.py\ncheck.py\npack/other.py",
        "1 # the larger of two\n2 def larger(a, b):\n3     return min(a, b)",
        "ok",
        "all good",
    ]
    assert "+    return max(a, b)" in asyncio.run(workspace.diff())
    assert (outcome.usage.turns, outcome.usage.tool_calls, outcome.usage.invalid_calls) == (4, 4, 0)


def test_several_calls_of_one_turn_are_answered_in_order_and_finish_ends_the_turn():
    outcome = run(["> read calc.py 1 1\n> read calc.py 2 2\n> finish\n> list"])
    assert [event.name for event in outcome.tools] == ["read", "read", "finish"]
    assert [m.text for m in outcome.conversation.messages if m.role is Role.TOOL][:2] == [
        "1 # the larger of two",
        "2 def larger(a, b):",
    ]


@pytest.mark.parametrize(
    ("budgets", "stop", "turns"),
    [
        (Budgets(turns=3), StopCause.TURNS, 3),
        (Budgets(tool_calls=2), StopCause.TOOL_CALLS, 3),
        (Budgets(tokens=4), StopCause.TOKENS, 2),
    ],
)
def test_budgets_are_the_models(budgets, stop, turns):
    outcome = run(["> read calc.py"] * 9, budgets)
    assert (outcome.stop, outcome.usage.turns) == (stop, turns)
    assert outcome.stop.truncated
    assert not outcome.failed_by_us


def test_a_burst_of_calls_shares_one_bound():
    outcome = run(["\n".join(["> read calc.py"] * 20), "> finish"], Budgets(output_tokens=30))
    assert outcome.usage.output_tokens <= 30


def test_a_self_summary_starts_a_new_context_from_what_is_carried():
    steps = ["> read calc.py", "> edit calc.py 3 return max(a, b)", "next run the check", "> finish"]
    outcome = run(steps, Budgets(turns=9, summary_trigger=25))
    new = outcome.conversation
    assert (outcome.stop, outcome.usage.summaries, outcome.usage.turns) == (StopCause.FINISHED, 1, 3)
    assert (new.summaries, new.id, new.task) == (1, "conversation#1", "make check pass")
    assert new.messages[0].text == COMPACT.system_text()
    assert new.messages[1].text == "make check pass\nnote 1 next run the check\nedit calc.py\nturns 7"
    old = new.parent
    assert old is not None
    assert [m.text for m in old.messages[-2:]] == [COMPACT.summary_request, "next run the check"]
    assert [event.segment for event in outcome.tools] == [0, 0, 1]


class Slow(OverlayWorkspace):
    async def exec(self, command: str, *, timeout: float) -> ExecResult:
        await asyncio.sleep(60)
        raise AssertionError


def test_the_wall_clock_is_our_error():
    outcome = run(["> shell ls"], Budgets(wall_seconds=0.05), workspace=Slow(SAMPLE))
    assert outcome.stop is StopCause.WALL_CLOCK
    assert outcome.failed_by_us


def test_a_timeout_from_inside_is_not_taken_for_the_wall_clock():
    def fail(conversation: Conversation) -> str:
        raise TimeoutError("somebody else's")

    with pytest.raises(TimeoutError, match="somebody else's"):
        run([fail])
