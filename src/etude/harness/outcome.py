"""What a run of the loop may spend, and how it ended.

Turns, tool calls, sampled tokens, command seconds and money are the model's budgets: running out of one is the model's
failure. The wall clock is our safety net: hitting it is our error. Therefore only the seconds of the model's commands
count against it, and only on a host that gave them CPU time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.harness.policy import Conversation, Turn
from etude.trace.trace import StopCause, ToolEvent, TraceUsage

_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per million tokens."""

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
    """Number of turns. Summaries do not count as turns, but their tokens count."""
    tool_calls: int = 100
    tokens: int = 100_000
    """Sampled tokens of the whole run."""
    turn_tokens: int = 8_000
    """Sampled tokens of one turn; a turn that reaches the limit is cut off."""
    output_tokens: int = 8_000
    """Tokens of tool output per turn, shared by all calls of the turn."""
    summary_trigger: int = 0
    """Context length in tokens at which the harness asks for a self-summary; 0 never asks."""
    summary_tokens: int = 2_000
    tool_seconds: float = 0.0
    """Seconds of all commands in the run (`Output.seconds`); 0 means no limit. Checked between turns, since each
    command has a time limit of its own."""
    money: float = 0.0
    """Cost of the run; 0 means no limit. Checked between turns, so the last turn may cost more than was left."""
    prices: Prices = Prices()
    wall_seconds: float = 3_600.0


@dataclass(slots=True)
class Outcome:
    """Result of a run, filled in while it goes on: whoever cancels it has what happened until then."""

    conversation: Conversation
    """The last conversation; earlier ones are its parents."""
    stop: StopCause = StopCause.CANCELLED
    error: str = ""
    """What failed, for StopCause.ERROR and WALL_CLOCK."""
    final_text: str = ""
    usage: TraceUsage = field(default_factory=TraceUsage)
    tools: list[ToolEvent] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"policy": 0.0, "tools": 0.0})

    @property
    def failed_by_us(self) -> bool:
        """Infrastructure, the wall clock or the caller ended the run: it says nothing about the model."""
        return self.stop.ours
