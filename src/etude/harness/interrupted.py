"""What a run leaves behind that ended in the middle of a turn, so that the conversation can go on.

Invariant: when the next request begins, every call in the conversation has an answer, as endpoints demand; and what the
agent did in a turn that was cut short is recorded like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.harness.loop import Observer
from etude.harness.outcome import Outcome
from etude.harness.policy import Conversation, Message, Role, Turn
from etude.trace.trace import ToolEvent, TraceUsage

NOT_DONE = "(interrupted by the user: this call was not finished)"


class TurnWatch(Observer):
    """Knows which turn is open; hands everything on to `inner`."""

    def __init__(self, inner: Observer) -> None:
        self._inner = inner
        self._open: Turn | None = None
        self._told = 0

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        self._open = turn
        await self._inner.turn(conversation, turn)

    async def tool(self, event: ToolEvent) -> None:
        await self._inner.tool(event)

    async def answered(
        self, turn: Turn, tools: Sequence[ToolEvent], told: Sequence[Message], usage: TraceUsage
    ) -> None:
        self._open = None
        self._told += len(tools)
        await self._inner.answered(turn, tools, told, usage)

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._open = None
        await self._inner.summary(conversation, turn, usage)

    async def close(self, outcome: Outcome, summary_request: str) -> None:
        """After a run that did not end between two turns."""
        messages = outcome.conversation.messages
        if self._open is None:
            # A request for a summary that got none is no state to go on from.
            if messages and messages[-1].role is Role.USER and messages[-1].text == summary_request:
                messages.pop()
            return
        if len(messages) > 1 and messages[-1].turn is self._open and messages[-2].text == summary_request:
            del messages[-2:]
            return
        tools = outcome.tools[self._told :]
        await self.answered(self._open, tools, [], outcome.usage)


def answer_all(conversation: Conversation) -> None:
    """Calls that nobody answered: those that an interrupt caught, and those behind a call that ended the run."""
    messages = conversation.messages
    last = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].turn is not None), None)
    turn = messages[last].turn if last is not None else None
    if last is None or turn is None:
        return
    answered = sum(message.role is Role.TOOL for message in messages[last + 1 :])
    missing = [Message(Role.TOOL, NOT_DONE, call=call) for call in turn.calls[answered:]]
    messages[last + 1 + answered : last + 1 + answered] = missing
