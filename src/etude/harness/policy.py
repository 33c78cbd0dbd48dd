"""The interface of a policy, which produces the agent's turns.

The loop only calls `policy.act(conversation) -> Turn` and works with any kind of policy: a token policy over an engine,
a chat policy over any OpenAI-compatible endpoint, or a scripted policy for tests and reference solutions.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from etude.trace.conversation.messages import Conversation, Turn


class PolicyError(Exception):
    """The policy could not act because infrastructure failed (engine lost, endpoint down). The rollout ends as an
    error, not as the model's failure."""


class ContextFull(Exception):
    """The conversation no longer fits into the model's context. The run stops with StopCause.CONTEXT."""


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
