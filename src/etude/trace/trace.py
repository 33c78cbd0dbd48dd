"""Trace: the record of one rollout, and the source of truth for training.

A trace is a chain (or tree) of segments. A segment is one context that the model saw: its tokens are exactly those that
the engine was given and those that it sampled, never re-tokenised. A self-summary, a fork or a sub-agent starts a new
segment. Tokens are marked as sampled in one segment only, the one in which the model sampled them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

UNSAMPLED_VERSION = -1
UNKNOWN_EXPERT = np.uint16(0xFFFF)
"""Marks the experts of a token as unknown, because the token was never fed to the network."""


class SegmentKind(StrEnum):
    START = "start"
    SUMMARY = "summary"
    """A segment that starts from the self-summary that its parent ended with."""
    REWRITTEN = "rewritten"
    """A segment that starts with its parent's conversation rendered again. This happens when a chat template drops
    earlier thinking at the next user message, and when a session is resumed. The repeated tokens count as given, since
    training uses them in the parent, where they were sampled."""
    FORK = "fork"
    """A segment that shares the beginning of its parent and goes on otherwise, such as a conversation that was cut
    back. The shared tokens count as given."""
    AGENT = "agent"
    """A segment of an agent that its parent's agent called."""
    ASIDE = "aside"
    """A call beside the task, such as one for a title. Its tokens are recorded, but nothing trains on them."""


class BreakKind(StrEnum):
    """How an agent's prompt differs from the conversation that the model sampled in."""

    EDITED = "edited"
    """A turn of the model came back with other words."""
    DROPPED = "dropped"
    """A message in the middle is gone."""
    THINKING_LOST = "thinking_lost"
    """Thinking that the prompt would have repeated is gone."""
    TOOLS_CHANGED = "tools_changed"
    SYSTEM_CHANGED = "system_changed"
    UNKNOWN_TURN = "unknown_turn"
    """A turn that the model never sampled."""


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a prompt is not the continuation of what was sampled before. What comes from there on was encoded
    anew, and counts as given until the model samples again."""

    kind: BreakKind
    place: int
    """Position in the segment's tokens."""
    detail: str = ""


class StopCause(StrEnum):
    FINISHED = "finished"
    """The agent called the `finish` tool."""
    REPLIED = "replied"
    """The agent answered without any tool call, which ends the task in some profiles (variants of the harness)."""
    TURNS = "turns"
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"
    TOOL_SECONDS = "tool_seconds"
    """Commands reached their total time limit. Time on hosts that are short of CPU time does not count."""
    MONEY = "money"
    CONTEXT = "context"
    """The context filled up and could not be summarised."""
    CANCELLED = "cancelled"
    WALL_CLOCK = "wall_clock"
    """The wall-clock limit, a safety net, expired. This counts as an infrastructure error, not as the model's."""
    ERROR = "error"
    """The infrastructure failed; `Trace.error` says how."""

    @property
    def truncated(self) -> bool:
        """Whether the rollout ran out of a budget. That is the model's doing and counts as a fail."""
        return self in _BUDGETS

    @property
    def ours(self) -> bool:
        """Whether infrastructure, the wall clock or the caller ended the rollout, which is not the model's doing."""
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
    """Log-probs of the sampled tokens; 0 for tokens that were not sampled."""
    versions: NDArray[np.int32]
    """Weight version that sampled each token; UNSAMPLED_VERSION for tokens that were not sampled."""
    experts: NDArray[np.uint16] | None
    """Experts chosen by the engine's MoE router, shape [tokens, MoE layers, top k]; UNKNOWN_EXPERT where unknown. None
    for a dense model."""
    breaks: tuple[Break, ...] = ()
    """Sorted by place. An agent of ours makes none."""

    @property
    def trained(self) -> bool:
        """Whether training uses the segment."""
        return self.kind is not SegmentKind.ASIDE and bool(self.sampled.any())


@dataclass(slots=True)
class ToolEvent:
    segment: int
    """Number of self-summaries before the call. This is also the index of the call's segment, unless a chat template
    has rewritten the history: each rewrite starts a segment too, but is not counted here."""
    turn: int
    name: str
    arguments: str
    ok: bool
    """Whether the call succeeded: it was well-formed and not refused, and the tool reported no error to the model."""
    valid: bool
    """Whether the call itself was well-formed: a known tool, with arguments that parse and fit its schema."""
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
    """Tokens of plain messages to the user, including the final one."""
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    """Prompt tokens summed over all turns. Each prompt counts in full, even if it extends the previous one."""
    cached_tokens: int = 0
    """Prompt tokens that the inference server reported as cached."""
    tool_seconds: float = 0.0
    """Total running time of commands in seconds, by the same clocks that enforce the commands' time limits. A command
    adds 0 if its host was short of CPU time, because its time then says more about the host."""
    cost: float = 0.0
    """Cost of the tokens, at the recipe's prices."""
    summary_tokens: int = 0
    """Sampled tokens that belong to self-summaries."""
    empty_summaries: int = 0
    cut_summaries: int = 0
    context_before: int = 0
    """Total length, in tokens, of the contexts that self-summaries replaced."""
    context_after: int = 0
    """Total initial length, in tokens, of the contexts that started from a self-summary."""
    rereads: int = 0
    """Number of files that were read before a self-summary and again after it; each file counts once per context."""

    @property
    def compression(self) -> float:
        """Factor by which self-summaries shortened their contexts; 0 without self-summaries."""
        return self.context_before / self.context_after if self.context_after else 0.0


@dataclass(slots=True)
class Trace:
    id: str
    task: str
    split: str
    group: str
    member: int
    policy: str
    """Name of the policy that acted: a checkpoint or weight version, the oracle, or a chat model."""
    seed: int
    segments: list[Segment] = field(default_factory=list)
    tools: list[ToolEvent] = field(default_factory=list)
    usage: TraceUsage = field(default_factory=TraceUsage)
    stop: StopCause = StopCause.ERROR
    error: str = ""
    started: float = 0.0
    """Start time, in Unix seconds."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds spent waiting for the engine, in tools, in the sandbox, and in grading, by name."""
    diff: str = ""
    """The agent's change to the workspace, as a unified diff."""
    messages: list[dict[str, object]] = field(default_factory=list)
    """The conversation as OpenAI messages, for display and exports; training never reads it."""

    @property
    def rewrites(self) -> int:
        """Number of segments that render their parent's conversation again, due to a chat template or a resumed
        session."""
        return sum(segment.kind is SegmentKind.REWRITTEN for segment in self.segments)

    @property
    def breaks(self) -> int:
        return sum(len(segment.breaks) for segment in self.segments)

    @property
    def main(self) -> list[Segment]:
        """The segments of the agent itself, without those of agents that it called and calls beside the task."""
        apart: set[int] = set()
        for segment in self.segments:
            if segment.kind in (SegmentKind.AGENT, SegmentKind.ASIDE) or segment.parent in apart:
                apart.add(segment.id)
        return [segment for segment in self.segments if segment.id not in apart]

    def version_span(self) -> tuple[int, int]:
        """Return the oldest and newest weight version that sampled a token to train on, or (-1, -1) if none did."""
        seen = [s.versions[s.sampled] for s in self.segments if s.trained]
        if not seen:
            return UNSAMPLED_VERSION, UNSAMPLED_VERSION
        every = np.concatenate(seen)
        return int(every.min()), int(every.max())
