"""Describes in a few words how an agent's run ended."""

from __future__ import annotations

from etude.cli.visible import visible
from etude.harness import Outcome
from etude.trace import StopCause

STOPS: dict[str, str] = {
    StopCause.FINISHED: "done",
    StopCause.REPLIED: "done",
    StopCause.TURNS: "out of turns",
    StopCause.TOKENS: "out of tokens",
    StopCause.TOOL_CALLS: "out of tool calls",
    StopCause.TOOL_SECONDS: "out of tool time",
    StopCause.MONEY: "out of money",
    StopCause.CONTEXT: "out of context",
    StopCause.CANCELLED: "stopped",
    StopCause.WALL_CLOCK: "out of time",
    StopCause.ERROR: "failed",
}


def how_it_ended(outcome: Outcome) -> str:
    why = f": {visible(outcome.error)}" if outcome.error else ""
    return f"{STOPS[outcome.stop]}{why}, {count(outcome.usage.turns, 'turn')}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
