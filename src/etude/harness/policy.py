"""The interface of a policy, which produces the agent's turns, and the types of conversations.

The loop only calls `policy.act(conversation) -> Turn` and works with any kind of policy: a token policy over an engine,
a chat policy over any OpenAI-compatible endpoint, or a scripted policy for tests and reference solutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class PolicyError(Exception):
    """The policy could not act because infrastructure failed (engine lost, endpoint down). The rollout ends as an
    error, not as the model's failure."""


class ContextFull(Exception):
    """The conversation no longer fits into the model's context. The run stops with StopCause.CONTEXT."""


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


@runtime_checkable
class Policy(Protocol):
    """The policy contract, checked by tests/contract/policy.py.

    - `act` gets a conversation whose last message is not the assistant's, and returns the next turn; the loop appends
      it. Earlier messages never change, so each prompt extends the previous one.
    - `tokens` returns the conversation's number of tokens, which the summary trigger and budgets use.
    - Infrastructure failures raise PolicyError; a conversation that no longer fits raises ContextFull.
    """

    @property
    def name(self) -> str: ...

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn: ...

    def tokens(self, conversation: Conversation) -> int: ...

    def count(self, text: str) -> int:
        """Return the number of tokens in a text, with which the loop limits tool output."""
        ...
