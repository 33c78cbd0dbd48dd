"""Widgets for the parts of a conversation: thinking, replies, tool calls."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static

from etude.cli.screen.formatting import difference, folded, headline, period
from etude.cli.visible import visible
from etude.harness import ToolCall
from etude.trace import ToolEvent

State: TypeAlias = Literal["writing", "running", "ok", "failed", "stopped"]
_SIGNS: dict[State, tuple[str, str]] = {
    "writing": ("◌", "dim"),
    "running": ("●", "$warning"),
    "ok": ("✓", "$success"),
    "failed": ("✗", "$error"),
    "stopped": ("■", "$warning"),
}
_TAIL = 60
_FOLDED_DIFF_LINES = 40


class Reply(Markdown):
    """A message of the agent, streamed as it arrives."""

    def __init__(self, text: str = "") -> None:
        super().__init__(visible(text), open_links=False)
        self._stream = Markdown.get_stream(self) if not text else None

    async def add(self, text: str) -> None:
        if self._stream is not None:
            await self._stream.write(visible(text))

    async def done(self) -> None:
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None


class Thinking(Static):
    """The agent's thinking, folded to one line or shown in full."""

    can_focus = True
    BINDINGS = [Binding("enter", "fold", "unfold", show=False)]

    def __init__(self, text: str = "") -> None:
        super().__init__("", markup=False)
        self._text = text
        self._open = False
        self._over = bool(text)

    def on_mount(self) -> None:
        self._show()

    def add(self, text: str) -> None:
        self._text += text
        self._show()

    def done(self) -> None:
        self._over = True
        self._show()

    def action_fold(self) -> None:
        self.unfold(not self._open)

    def on_click(self) -> None:
        self.action_fold()

    def unfold(self, is_open: bool) -> None:
        self._open = is_open
        self._show()

    def _show(self) -> None:
        text = visible(self._text.strip())
        words = len(text.split())
        if self._open:
            self.update(Content(f"▾ {text}"))
        elif self._over:
            self.update(Content(f"▸ thought, {words} words"))
        else:
            self.update(Content(f"▸ thinking … {' '.join(text.split())[-_TAIL:]}"))


class ToolCard(Vertical):
    """A tool call: its name and arguments, state, time, output and diff."""

    can_focus = True
    BINDINGS = [Binding("enter", "fold", "unfold", show=False)]

    def __init__(self, name: str) -> None:
        super().__init__()
        self.state: State = "writing"
        self._tool, self._line, self._raw = name, "", ""
        self._output, self._diff = "", ""
        self._begun = time.monotonic()
        self._seconds: float | None = None
        self._open = False
        self._head = Static(classes="head", markup=False)
        self._body = Static(classes="output empty", markup=False)
        self._change = Static(classes="difference empty", markup=False)

    def compose(self):  # type: ignore[no-untyped-def]
        yield self._head
        yield self._change
        yield self._body

    def on_mount(self) -> None:
        self.tick()

    def writes(self, piece: str, name: str) -> None:
        self._tool = name
        self._raw += piece
        self.tick()

    def runs(self, call: ToolCall) -> None:
        self._tool, self._raw, self._line = call.name, call.raw, headline(call)
        self.state, self._begun = "running", time.monotonic()
        self.tick()

    def ends(self, event: ToolEvent, diff: str) -> None:
        self.state = "ok" if event.ok else "failed"
        self._seconds, self._output, self._diff = event.seconds, event.output, diff
        self._show()

    def stops(self) -> None:
        if self.state in ("writing", "running"):
            self.state, self._seconds = "stopped", time.monotonic() - self._begun
            self.tick()

    def action_fold(self) -> None:
        self.unfold(not self._open)

    def on_click(self) -> None:
        self.action_fold()

    def unfold(self, is_open: bool) -> None:
        self._open = is_open
        self.set_class(is_open, "open")
        self._show()

    def tick(self) -> None:
        """Redraw the head line; called regularly while the call runs."""
        sign, style = _SIGNS[self.state]
        seconds = time.monotonic() - self._begun if self._seconds is None else self._seconds
        took = f"  {period(seconds)}" if self.state != "writing" and (seconds >= 1 or self._seconds is not None) else ""
        if self._open:
            line = visible(self._raw)
        elif self.state == "writing":
            line = f"… {len(self._raw)} characters" if self._raw else "…"
        else:
            line = self._line
        # The time comes first, since a long line is cut off at its end.
        self._head.update(
            Content.assemble((f"{sign} ", style), (visible(self._tool), "bold"), (took, "dim"), ("  ", ""), (line, ""))
        )

    def _show(self) -> None:
        self.tick()
        # An edit's diff says more than its tool's output, and the todo list is shown at the bottom of the screen.
        said_elsewhere = self._diff or self._tool == "todo"
        output = self._output if self._open or not said_elsewhere or self.state == "failed" else ""
        self._body.update(Content(visible(output) if self._open else folded(output)))
        self._body.set_class(not output, "empty")
        lines = self._diff.splitlines(keepends=True)
        cut = len(lines) - _FOLDED_DIFF_LINES
        shown = self._diff if self._open or cut <= 0 else "".join(lines[:_FOLDED_DIFF_LINES])
        more = f"\n… {cut} more lines" if shown != self._diff else ""
        self._change.update(difference(shown) + Content(more) if shown else Content(""))
        self._change.set_class(not shown, "empty")
