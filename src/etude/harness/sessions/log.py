"""Between the loop and the record: what happens in a run becomes lines of its session."""

from __future__ import annotations

from collections.abc import Sequence

from etude.harness.loop import Observer
from etude.harness.policy import Conversation, Message, Turn
from etude.harness.sessions.record import SessionRecord
from etude.harness.toolbox import Toolbox
from etude.harness.workspace import OverlayWorkspace
from etude.trace.trace import ToolEvent, TraceUsage


class SessionLog(Observer):
    """Hands everything on to `inner` as well."""

    def __init__(self, record: SessionRecord, workspace: OverlayWorkspace, toolbox: Toolbox, inner: Observer) -> None:
        self._record, self._workspace, self._toolbox, self._inner = record, workspace, toolbox, inner

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        await self._inner.turn(conversation, turn)

    async def tool(self, event: ToolEvent) -> None:
        await self._inner.tool(event)

    async def answered(
        self, turn: Turn, tools: Sequence[ToolEvent], told: Sequence[Message], usage: TraceUsage
    ) -> None:
        start = self._workspace.start
        files = {path: (start.get(path), data) for path, data in self._workspace.changed().items()}
        self._record.turned(turn, tools, told, usage, files, self._toolbox.carried())
        await self._inner.answered(turn, tools, told, usage)

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._record.summarised(conversation, turn, usage)
        await self._inner.summary(conversation, turn, usage)
