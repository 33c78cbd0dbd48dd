"""Shows the conversation as it happens: a turn's pieces as they are streamed, then its calls, then their results.

Invariant: once a turn is complete the screen shows exactly that turn, whatever pieces came before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from etude.cli.screen.cards import Reply, Thinking, ToolCard
from etude.cli.visible import visible
from etude.harness import Conversation, Piece, Role, Turn
from etude.harness.editing.diff import binary_changes, is_source, unified_diff
from etude.harness.workspaces.folder_files import differing
from etude.trace import ToolEvent


class Stage(VerticalScroll):
    can_focus = False

    def __init__(self) -> None:
        super().__init__(id="said")
        self._thinking: Thinking | None = None
        self._reply: Reply | None = None
        self._cards: dict[int, ToolCard] = {}
        """Widgets of the current turn's tool calls, by the call's index in the turn."""
        self._ended = 0
        self._said = ""

    def on_mount(self) -> None:
        self.anchor()

    async def asked(self, text: str) -> None:
        await self.mount(Static(Content(visible(text)), classes="asked", markup=False))
        self.anchor()

    async def note(self, text: str, kind: str = "note") -> None:
        await self.mount(Static(Content(visible(text)), classes=kind, markup=False))

    async def piece(self, piece: Piece) -> None:
        match piece.kind:
            case "again":
                await self._drop()
            case "thinking":
                if self._thinking is None:
                    self._thinking = Thinking()
                    await self.mount(self._thinking)
                self._thinking.add(piece.text)
            case "text":
                self._end_thinking()
                if self._reply is None:
                    self._reply, self._said = Reply(), ""
                    await self.mount(self._reply)
                self._said += piece.text
                await self._reply.add(piece.text)
            case "call":
                self._end_thinking()
                card = await self._card(piece.place, piece.name)
                card.writes(piece.text, piece.name)

    async def turn(self, turn: Turn) -> None:
        self._end_thinking()
        if self._thinking is None and turn.thinking.strip():
            await self.mount(Thinking(turn.thinking))
        if self._reply is not None:
            await self._reply.done()
        if self._reply is not None and self._said != turn.text:
            await self._reply.remove()
            self._reply = None
        if self._reply is None and turn.text.strip():
            await self.mount(Reply(turn.text))
        for place, call in enumerate(turn.calls):
            (await self._card(place, call.name)).runs(call)
        self._thinking = self._reply = None
        if not turn.calls:
            self._cards = {}
        self._ended = 0

    def tool(self, event: ToolEvent, diff: str) -> None:
        """Show a tool call's result on the first card that has none yet: results arrive in the order in which calls
        were made."""
        self._cards[self._ended].ends(event, diff)
        self._ended += 1
        if self._ended == len(self._cards):
            self._cards, self._ended = {}, 0

    async def stopped(self) -> None:
        """Show the current turn as ended. Its reply and calls may be unfinished, if the turn was broken off."""
        self._end_thinking()
        if self._reply is not None:
            await self._reply.done()
        for card in self._cards.values():
            card.stops()
        self._thinking, self._reply, self._cards, self._ended = None, None, {}, 0

    async def show_saved(self, conversation: Conversation) -> None:
        for message in conversation.messages[1:]:
            if message.role is Role.USER:
                await self.asked(message.text)
            elif message.turn is not None:
                await self.stopped()
                await self.turn(message.turn)
            elif message.role is Role.TOOL and self._cards:
                name = message.call.name if message.call else ""
                raw = message.call.raw if message.call else ""
                self.tool(ToolEvent(0, 0, name, raw, True, True, 0.0, message.text, 0), "")
        await self.stopped()

    def tick(self) -> None:
        for card in self._cards.values():
            if card.state in ("running", "writing"):
                card.tick()

    def unfold(self, is_open: bool) -> None:
        for widget in self.query("ToolCard, Thinking"):
            if isinstance(widget, ToolCard | Thinking):
                widget.unfold(is_open)

    async def _card(self, place: int, name: str) -> ToolCard:
        if place not in self._cards:
            self._cards[place] = ToolCard(name)
            await self.mount(self._cards[place])
        return self._cards[place]

    async def _drop(self) -> None:
        for widget in (self._thinking, self._reply, *self._cards.values()):
            if widget is not None:
                await widget.remove()
        self._thinking, self._reply, self._cards = None, None, {}

    def _end_thinking(self) -> None:
        if self._thinking is not None:
            self._thinking.done()


def made(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return the diff between two states of the workspace's files, each given as path and content."""
    paths = [path for path in differing(before, after) if is_source(path)]
    old = {path: before[path] for path in paths if path in before}
    new = {path: after[path] for path in paths if path in after}
    return unified_diff(old, new) + binary_changes(old, new)
