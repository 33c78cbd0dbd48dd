"""Connects the agent loop to the session record: writes each event of a run to the session's log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from etude.harness.loop import Observer
from etude.harness.sessions.record import SessionRecord
from etude.harness.toolbox import Toolbox
from etude.harness.workspaces.workspace import OverlayWorkspace
from etude.trace.conversation.messages import Conversation, Message, Turn
from etude.trace.trace import ToolEvent, TraceUsage


class _FirstPiece:
    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self.came: float | None = None

    def __call__(self, piece: Any) -> None:
        if self.came is None:
            self.came = time.monotonic()
        self._tell(piece)


def _listening(policy: Any) -> _FirstPiece | None:
    """Wrap the policy's callback `on_piece`, unless it is wrapped already, to note when the first piece of a turn
    comes. Return the wrapper; None if the policy does not stream."""
    tell = getattr(policy, "on_piece", None)
    if tell is None or isinstance(tell, _FirstPiece):
        return tell
    policy.on_piece = _FirstPiece(tell)
    return cast(_FirstPiece, policy.on_piece)


class SessionLog(Observer):
    """Observer that records a run in the session's log and passes all events on to the observer `inner`. The time that
    `inner` takes does not count as the policy's."""

    def __init__(self, record: SessionRecord, workspace: OverlayWorkspace, toolbox: Toolbox, inner: Observer) -> None:
        self._record, self._workspace, self._toolbox, self._inner = record, workspace, toolbox, inner
        self._first = _listening(record.policy)
        self._seconds: dict[str, float] = {}
        self._wait()

    def _wait(self) -> None:
        """Start measuring the time that the policy takes for its next turn."""
        self._since = time.monotonic()
        if self._first is not None:
            self._first.came = None

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        self._seconds = {"policy": time.monotonic() - self._since}
        if self._first is not None and self._first.came is not None:
            self._seconds["first_piece"] = self._first.came - self._since
        await self._inner.turn(conversation, turn)
        self._since = time.monotonic()

    async def tool(self, event: ToolEvent) -> None:
        await self._inner.tool(event)

    async def answered(
        self, turn: Turn, tools: Sequence[ToolEvent], told: Sequence[Message], usage: TraceUsage
    ) -> None:
        seconds = {**self._seconds, "tools": time.monotonic() - self._since if tools else 0.0}
        self._record.turned(turn, tools, told, usage, self._workspace.sides(), self._toolbox.carried(), seconds)
        await self._inner.answered(turn, tools, told, usage)
        self._wait()

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._record.summarised(conversation, turn, usage, self._seconds)
        await self._inner.summary(conversation, turn, usage)
        self._wait()
