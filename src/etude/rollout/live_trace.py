"""Writes a rollout's messages to its live trace file while the agent loop runs."""

from __future__ import annotations

from collections.abc import Sequence

from etude.harness.loop import Observer
from etude.trace.conversation.messages import Conversation, Message, Turn
from etude.trace.conversation.openai_messages import THINKING, openai_messages
from etude.trace.live import LiveTrace
from etude.trace.trace import ToolEvent, TraceUsage


class LiveLog(Observer):
    def __init__(self, live: LiveTrace) -> None:
        self._live = live
        self._conversation: Conversation | None = None
        self._told = 0
        """Number of messages of the current conversation that have been written to the live trace's file."""

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        self._conversation = conversation

    async def answered(
        self, turn: Turn, tools: Sequence[ToolEvent], told: Sequence[Message], usage: TraceUsage
    ) -> None:
        self._write(tools, usage)

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._write((), usage)
        self._conversation, self._told = conversation, 0

    def _write(self, tools: Sequence[ToolEvent], usage: TraceUsage) -> None:
        assert self._conversation is not None
        fresh = Conversation(self._conversation.id, self._conversation.messages[self._told :])
        self._told = len(self._conversation.messages)
        self._live.turn(openai_messages(fresh, THINKING), tools, usage)
