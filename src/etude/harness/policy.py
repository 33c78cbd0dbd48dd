"""The Policy noun: what acts. The loop sees only `policy.act(conversation) -> Turn` and never asks which kind it has.

A token policy owns rendering and ids, a chat policy (any OpenAI-compatible endpoint) owns messages, a scripted one
serves tests and oracles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class PolicyError(Exception):
    """The policy could not act (engine lost, endpoint down). Infrastructure: the rollout becomes an error."""


class ContextFull(Exception):
    """The conversation fills the model's context: the loop summarises or stops."""


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
    """What the model wrote, byte for byte: malformed calls survive."""
    problem: str = ""
    """Why it did not parse, as the agent will read it."""


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
    """The token budget of the turn or the context ended it."""
    prompt_tokens: int = 0
    """That it was sampled behind; 0 where nobody said."""
    cached_tokens: int = 0
    """Of them, those that were not read again."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str = ""
    turn: Turn | None = None
    """For assistant messages: the turn itself, so that nothing has to be parsed or rendered twice."""
    call: ToolCall | None = None
    """For tool messages: the call that this answers."""


@dataclass(slots=True)
class Conversation:
    """What the agent is shown, in order. A self-summary starts a new one whose `parent` is the old one."""

    id: str
    messages: list[Message] = field(default_factory=list)
    task: str = ""
    """What was asked, as a self-summary carries it over."""
    parent: Conversation | None = None
    summaries: int = 0
    """Self-summaries that led here."""


@runtime_checkable
class Policy(Protocol):
    """The contract (tests/contract/policy.py).

    - `act` is given a conversation whose last message is not the assistant's, and returns the next turn; the loop
      appends it. Messages already given are never changed, so each prompt extends the last one.
    - `tokens` is the length of the conversation as this policy counts it, for the summary trigger and budgets.
    - Failures of infrastructure raise PolicyError; a conversation that no longer fits raises ContextFull.
    """

    @property
    def name(self) -> str: ...

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn: ...

    def tokens(self, conversation: Conversation) -> int: ...

    def count(self, text: str) -> int:
        """Tokens of a text, for budgets of tool output."""
        ...
