"""Tool time and money: whose they are, when they end a run, and what does not count."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.harness import parts
from tests.harness.parts import COMPACT, SAMPLE

from etude.harness import Budgets, Outcome, OverlayWorkspace, Prices, ScriptedPolicy, Turn, budgets_of
from etude.recipe.acting import HarnessRecipe
from etude.sandbox.contract import ExecResult
from etude.sandbox.cpu_share import Share
from etude.trace import StopCause

BUSY = Share(seconds=4.0, waited=4.0, given=0.5, cpu_seconds=0.5)
"""What a command got of a host that was short of time."""


class _Commands(OverlayWorkspace):
    """Each takes four seconds, and nobody waits for them."""

    share = Share(seconds=4.0, waited=0.0, given=4.0, cpu_seconds=0.1)

    async def exec(self, command: str, *, timeout: float) -> ExecResult:
        return ExecResult(0, b"ok\n", b"", 4.0, share=self.share)


def run(steps, budgets, workspace=None) -> Outcome:
    return parts.run(steps, budgets, workspace=workspace or _Commands(SAMPLE))


def test_commands_that_have_run_for_too_long_together_are_the_models_fail():
    outcome = run(["> shell a", "> list\n> shell b", "> read calc.py", "> finish"], Budgets(tool_seconds=8.0))
    assert (outcome.stop, outcome.usage.turns, outcome.usage.tool_seconds) == (StopCause.TOOL_SECONDS, 2, 8.0)
    assert outcome.stop.truncated
    assert not outcome.failed_by_us


def test_time_on_a_host_that_was_short_of_it_does_not_count():
    workspace = _Commands(SAMPLE)
    workspace.share = BUSY
    assert BUSY.short
    outcome = run(["> shell a"] * 5 + ["> finish"], Budgets(tool_seconds=8.0), workspace)
    assert (outcome.stop, outcome.usage.tool_seconds) == (StopCause.FINISHED, 0.0)


@pytest.mark.parametrize(
    ("share", "short"),
    [
        (Share(), False),
        (Share(10.0, 9.0, 1.0, 0.0), True),
        (Share(10.0, 9.0, 8.0, 0.0), False),
        (Share(10.0, 2.0, 1.0, 0.0), False),
    ],
)
def test_a_host_is_short_of_time_where_many_waited_and_little_was_left(share: Share, short: bool) -> None:
    assert share.short is short


def turn(text, prompt, cached, sampled) -> Turn:
    calls = asyncio.run(ScriptedPolicy([text], COMPACT).act(COMPACT.open("x"), max_tokens=9)).calls
    return Turn(calls=calls, sampled_tokens=sampled, prompt_tokens=prompt, cached_tokens=cached)


def test_money_is_what_the_tokens_cost():
    prices = Prices(input=2.0, cached=0.5, output=10.0)
    steps = [turn("> list", 1000, 0, 100), turn("> list", 1200, 1000, 50), turn("> finish", 1300, 1200, 5)]
    first, second = (1000 * 2 + 100 * 10) / 1e6, (200 * 2 + 1000 * 0.5 + 50 * 10) / 1e6
    outcome = run(steps, Budgets(money=first + second, prices=prices))
    assert (outcome.stop, outcome.usage.turns) == (StopCause.MONEY, 2)
    assert outcome.usage.cost == pytest.approx(first + second)
    assert (outcome.usage.prompt_tokens, outcome.usage.cached_tokens) == (2200, 1000)
    assert outcome.stop.truncated
    assert not outcome.failed_by_us
    assert run(steps, Budgets(money=1.0, prices=prices)).stop is StopCause.FINISHED


def test_what_an_endpoint_does_not_count_costs_by_our_own_estimate():
    budgets = Budgets(money=1e-5, prices=Prices(input=1.0))
    assert run(["> read calc.py"] * 20, budgets).stop is StopCause.MONEY


def test_summaries_cost_too():
    steps = [turn("> list", 90, 0, 1), replace(turn("> list", 90, 0, 1), calls=(), text="so far"), "> finish"]
    outcome = run(steps, Budgets(summary_trigger=5, money=1.5, prices=Prices(input=1e6 / 90)))
    assert (outcome.stop, outcome.usage.summaries, outcome.usage.turns) == (StopCause.MONEY, 1, 1)


def test_no_limit_is_the_default_and_a_recipe_sets_them():
    assert budgets_of(HarnessRecipe()).tool_seconds == budgets_of(HarnessRecipe()).money == 0
    prices = {"input": 0.6, "cached": 0.06, "output": 2.5}
    recipe = HarnessRecipe.model_validate({"max_tool_seconds": 90.0, "max_money": 0.25, "prices": prices})
    budgets = budgets_of(recipe)
    assert (budgets.tool_seconds, budgets.money, budgets.prices) == (90.0, 0.25, Prices(**prices))
    with pytest.raises(ValidationError, match="max_money needs prices"):
        HarnessRecipe(max_money=1.0)


def test_every_stop_is_an_answer_the_models_or_ours():
    decided = {StopCause.FINISHED, StopCause.REPLIED}
    for stop in StopCause:
        assert (stop in decided) + stop.truncated + stop.ours == 1, stop


def test_every_stop_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "harness.md").read_text()
    assert [stop.value for stop in StopCause if f"`{stop.value}`" not in page] == []
