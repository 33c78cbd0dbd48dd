"""The Trace noun: what happened in a rollout, and the source of truth for training.

A trace is a chain (or tree) of segments. A segment is one context the model saw: its tokens are exactly those that the
engine was given and those that it sampled, never re-tokenised. A self-summary or a fork starts a new segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

UNSAMPLED_VERSION = -1
UNKNOWN_EXPERT = np.uint16(0xFFFF)
"""Stands in every place of a token whose experts are not known: it was never fed to the network."""


class SegmentKind(StrEnum):
    START = "start"
    SUMMARY = "summary"
    """Begins from the summary that its parent ended with."""
    REWRITTEN = "rewritten"
    """Begins with its parent's conversation as a chat template shows it once a user speaks again, less the earlier
    thinking for example, or as a session that goes on later renders it. What it repeats counts as given: it was sampled
    in the parent, and is trained on there."""
    FORK = "fork"


class StopCause(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    """The agent called finish."""
    REPLIED = "replied"
    """The agent answered without any tool call, where that ends the task."""
    TURNS = "turns"
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"
    TOOL_SECONDS = "tool_seconds"
    """Its commands have run for as long as they may, on hosts that gave them time."""
    MONEY = "money"
    """Its tokens have cost what they may."""
    CONTEXT = "context"
    """A segment filled up and could not be summarised."""
    CANCELLED = "cancelled"
    WALL_CLOCK = "wall_clock"
    """The safety net expired: an error of ours, not the model's."""
    ERROR = "error"
    """Infrastructure failed; `Trace.error` says what."""

    @property
    def truncated(self) -> bool:
        """It ran out of a budget: the model's doing, and a fail."""
        return self in _BUDGETS

    @property
    def ours(self) -> bool:
        """Infrastructure, the wall clock or the caller ended it: it says nothing about the model."""
        return self in (StopCause.ERROR, StopCause.WALL_CLOCK, StopCause.CANCELLED)


_BUDGETS = frozenset(
    {
        StopCause.TURNS,
        StopCause.TOKENS,
        StopCause.TOOL_CALLS,
        StopCause.TOOL_SECONDS,
        StopCause.MONEY,
        StopCause.CONTEXT,
    }
)


@dataclass(slots=True)
class Segment:
    id: int
    parent: int | None
    kind: SegmentKind
    tokens: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    """0 where not sampled."""
    versions: NDArray[np.int32]
    """UNSAMPLED_VERSION where not sampled."""
    experts: NDArray[np.uint16] | None
    """[tokens, MoE layers, top k]; UNKNOWN_EXPERT where unknown."""


@dataclass(slots=True)
class ToolEvent:
    segment: int
    """Self-summaries before it: the place of its segment, where no template rewrote one."""
    turn: int
    name: str
    arguments: str
    """As the model wrote them."""
    ok: bool
    """False when the call was malformed, refused, or the tool reported an error to the model."""
    valid: bool
    """False when the call itself was malformed: unknown tool, arguments that do not parse."""
    seconds: float
    output: str
    output_tokens: int


@dataclass(slots=True)
class TraceUsage:
    turns: int = 0
    tool_calls: int = 0
    invalid_calls: int = 0
    summaries: int = 0
    thinking_tokens: int = 0
    call_tokens: int = 0
    output_tokens: int = 0
    """Tokens of tool output."""
    message_tokens: int = 0
    """Tokens of plain messages to the user, the final one included."""
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    """Tokens that the policy was given, over all turns: each prompt counts whole, also where it extends the last."""
    cached_tokens: int = 0
    """Of them, those that the policy's server did not have to read again, as far as it said."""
    tool_seconds: float = 0.0
    """That commands ran, by the clocks that bound them, on hosts that gave them time."""
    cost: float = 0.0
    """Of the tokens, by the prices of the recipe."""
    summary_tokens: int = 0
    """Of the sampled ones, those of self-summaries."""
    empty_summaries: int = 0
    """Self-summaries that said nothing."""
    cut_summaries: int = 0
    """Self-summaries that the token limit cut off."""
    context_before: int = 0
    """Tokens of the contexts that were summarised, together."""
    context_after: int = 0
    """Tokens of the contexts that took their places, as they began, together."""
    rereads: int = 0
    """Files read again after a self-summary that had been read before it, each once per context."""

    @property
    def compression(self) -> float:
        """How many times shorter a self-summary made its context; 0 without one."""
        return self.context_before / self.context_after if self.context_after else 0.0


@dataclass(slots=True)
class Trace:
    id: str
    task: str
    """Task id."""
    split: str
    group: str
    member: int
    policy: str
    """What acted: a checkpoint or version name, an oracle, a chat model."""
    seed: int
    segments: list[Segment] = field(default_factory=list)
    tools: list[ToolEvent] = field(default_factory=list)
    usage: TraceUsage = field(default_factory=TraceUsage)
    stop: StopCause = StopCause.ERROR
    error: str = ""
    started: float = 0.0
    """Unix seconds."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds spent waiting for the engine, in tools, in the sandbox, in grading."""
    diff: str = ""
    """The agent's change to the workspace, a unified diff."""
    messages: list[dict[str, object]] = field(default_factory=list)
    """The conversation as OpenAI messages, for people and exports; training never reads it."""

    @property
    def rewrites(self) -> int:
        """How often a prompt did not extend the last one because the chat template rewrites history."""
        return sum(segment.kind is SegmentKind.REWRITTEN for segment in self.segments)

    def version_span(self) -> tuple[int, int]:
        """The oldest and newest weights version that sampled a token, or (-1, -1)."""
        seen = [s.versions[s.sampled] for s in self.segments if s.sampled.any()]
        if not seen:
            return UNSAMPLED_VERSION, UNSAMPLED_VERSION
        every = np.concatenate(seen)
        return int(every.min()), int(every.max())
