"""The types of conversations: messages, turns and tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: dict[str, object] | None
    """The parsed arguments by name; None if the call did not parse."""
    raw: str
    problem: str = ""
    """Why the call did not parse, as a text for the agent."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the agent, as sampled from the policy: thinking, a message and any number of tool calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    sampled_tokens: int = 0
    thinking_tokens: int = 0
    call_tokens: int = 0
    message_tokens: int = 0
    cut_off: bool = False
    """Whether the turn was cut off by its token budget or the context limit."""
    prompt_tokens: int = 0
    """Number of tokens in the turn's prompt; 0 if the policy does not know it."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache of the engine or endpoint."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str = ""
    turn: Turn | None = None
    """For assistant messages: the turn with its calls, so that the text need not be parsed again."""
    call: ToolCall | None = None


@dataclass(slots=True)
class Conversation:
    """The messages in the agent's context. A self-summary starts a new conversation, whose `parent` is the old one."""

    id: str
    messages: list[Message] = field(default_factory=list)
    task: str = ""
    """The user's request, which is repeated in the conversation after a self-summary."""
    parent: Conversation | None = None
    """The conversation that was summarised into this one; None before the first self-summary."""
    summaries: int = 0
