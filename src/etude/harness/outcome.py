"""What a run of the loop may spend, and how it ended.

Turns, tool calls, sampled tokens, seconds of commands and money are the model's budgets: running out of them is its
failure. The wall clock is our safety net: its expiry is an error of ours. So the seconds that count as the model's are
those of its commands alone, on a host that gave them time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.harness.policy import Conversation, Turn
from etude.trace.trace import StopCause, ToolEvent, TraceUsage

_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens."""

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
    """Summaries are not counted as turns, their tokens are."""
    tool_calls: int = 100
    tokens: int = 100_000
    """Sampled tokens of the whole run."""
    turn_tokens: int = 8_000
    """Sampled tokens of one turn; a turn that reaches it is cut off."""
    output_tokens: int = 8_000
    """Tokens of tool output per turn: several calls in one turn share them."""
    summary_trigger: int = 0
    """Tokens of context at which the harness asks for a self-summary; 0 never asks."""
    summary_tokens: int = 2_000
    tool_seconds: float = 0.0
    """Of the commands of the whole run (`Output.seconds`); 0: no limit. Looked at between turns: a command that runs
    has a limit of its own."""
    money: float = 0.0
    """0: no limit. Looked at between turns, so the last one may cost more than was left."""
    prices: Prices = Prices()
    wall_seconds: float = 3_600.0


@dataclass(slots=True)
class Outcome:
    """Filled in while the run goes on, so that whoever cancels it still holds what happened until then."""

    conversation: Conversation
    """The last one; earlier ones are its parents."""
    stop: StopCause = StopCause.CANCELLED
    error: str = ""
    """With StopCause.ERROR or WALL_CLOCK: what failed."""
    final_text: str = ""
    usage: TraceUsage = field(default_factory=TraceUsage)
    tools: list[ToolEvent] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"policy": 0.0, "tools": 0.0})

    @property
    def failed_by_us(self) -> bool:
        """Infrastructure, the wall clock or the caller ended the run: it says nothing about the model."""
        return self.stop.ours
