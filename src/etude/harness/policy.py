"""Policy: what decides the next turn.

The loop sees only `policy.act(conversation) -> Turn` and never asks which kind it has. A token policy owns rendering
and token ids, a chat policy (any OpenAI-compatible endpoint) owns messages, a scripted policy serves tests and oracles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class PolicyError(Exception):
    """The policy could not act (engine lost, endpoint down): infrastructure failed, the rollout is an error."""


class ContextFull(Exception):
    """The conversation fills the model's context. The run stops with StopCause.CONTEXT."""


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
    """None when the call did not parse."""
    raw: str
    """What the model wrote, byte for byte, so that malformed calls are preserved."""
    problem: str = ""
    """Why the call did not parse, in the words shown to the agent."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One action of the policy: a message and any number of tool calls."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    sampled_tokens: int = 0
    thinking_tokens: int = 0
    call_tokens: int = 0
    message_tokens: int = 0
    cut_off: bool = False
    """True if the turn's token budget or the context limit ended the turn."""
    prompt_tokens: int = 0
    """Length of the prompt the turn was sampled from; 0 if the policy does not know it."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str = ""
    turn: Turn | None = None
    """For assistant messages: the turn itself, so that nothing has to be parsed or rendered twice."""
    call: ToolCall | None = None
    """For tool messages: the call that this message answers."""


@dataclass(slots=True)
class Conversation:
    """The messages that the agent is shown. A self-summary starts a new conversation, whose `parent` is the old."""

    id: str
    messages: list[Message] = field(default_factory=list)
    task: str = ""
    """The user's request; a self-summary carries it over into the new conversation."""
    parent: Conversation | None = None
    summaries: int = 0
    """Number of self-summaries before this conversation."""


@runtime_checkable
class Policy(Protocol):
    """The policy contract, checked by tests/contract/policy.py.

    - `act` gets a conversation whose last message is not the assistant's, and returns the next turn; the loop appends
      it. Earlier messages never change, so each prompt extends the previous one.
    - `tokens` is the length of the conversation as this policy counts it, used for the summary trigger and budgets.
    - Infrastructure failures raise PolicyError; a conversation that no longer fits raises ContextFull.
    """

    @property
    def name(self) -> str: ...

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn: ...

    def tokens(self, conversation: Conversation) -> int: ...

    def count(self, text: str) -> int:
        """Number of tokens in a text, used to bound tool output."""
        ...
