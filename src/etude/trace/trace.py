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
    CONTEXT = "context"
    """A segment filled up and could not be summarised."""
    CANCELLED = "cancelled"
    WALL_CLOCK = "wall_clock"
    """The safety net expired: an error of ours, not the model's."""
    ERROR = "error"
    """Infrastructure failed; `Trace.error` says what."""

    @property
    def truncated(self) -> bool:
        return self in (StopCause.TURNS, StopCause.TOKENS, StopCause.TOOL_CALLS, StopCause.CONTEXT)


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
