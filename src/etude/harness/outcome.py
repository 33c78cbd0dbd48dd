"""Budgets of a run of the agent loop, and its outcome.

Turns, tool calls, sampled tokens, command seconds and money are the model's budgets: using one up is the model's
failure. The wall-clock limit is a safety net: reaching it is an infrastructure error. Command seconds are the running
time of commands, without other tools. A command that ran while the host was short of CPU time does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.trace.conversation.messages import Conversation, Turn
from etude.trace.trace import StopCause, ToolEvent, TraceUsage

_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per million tokens, in any one currency."""

    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0

    def of(self, turn: Turn) -> float:
        fresh = turn.prompt_tokens - turn.cached_tokens
        cost = fresh * self.input + turn.cached_tokens * self.cached + turn.sampled_tokens * self.output
        return cost / _MILLION


@dataclass(frozen=True, slots=True)
class Budgets:
    turns: int = 50
    """Maximum number of turns. Summaries do not count as turns, but their tokens count."""
    tool_calls: int = 100
    tokens: int = 100_000
    """Maximum number of sampled tokens of the whole run."""
    turn_tokens: int = 8_000
    """Maximum number of sampled tokens of one turn; a turn that reaches it is cut off."""
    output_tokens: int = 8_000
    """Maximum number of tokens of tool output per turn, shared by all calls of the turn."""
    summary_trigger: int = 0
    """Context length in tokens at which the harness asks for a self-summary; 0 never asks."""
    summary_tokens: int = 2_000
    tool_seconds: float = 0.0
    """Maximum total running time of the run's commands in seconds; 0 means no limit. It is checked only between turns;
    within a turn, each command's own time limit applies."""
    money: float = 0.0
    """Maximum cost of the run, in the currency of `prices`; 0 means no limit. It is checked between turns, so the last
    turn may exceed it."""
    prices: Prices = Prices()
    wall_seconds: float = 3_600.0


@dataclass(slots=True)
class Outcome:
    """Result of a run, filled in during the run, so that it is also available if the run is cancelled."""

    conversation: Conversation
    """The latest conversation; its chain of parents holds those before self-summaries."""
    stop: StopCause = StopCause.CANCELLED
    error: str = ""
    """What made the run fail, if `stop` is StopCause.ERROR or WALL_CLOCK."""
    final_text: str = ""
    usage: TraceUsage = field(default_factory=TraceUsage)
    tools: list[ToolEvent] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"policy": 0.0, "tools": 0.0})

    @property
    def failed_by_us(self) -> bool:
        """Whether infrastructure, the wall clock or the caller ended the run, not the model."""
        return self.stop.ours
