"""Prints what an agent does, line by line, for terminals and pipes."""

from __future__ import annotations

from rich.console import Console

from etude.cli.visible import visible
from etude.harness import Conversation, Observer, Turn
from etude.trace import ToolEvent, TraceUsage


class Show(Observer):
    """Observer that prints messages, tool calls and outputs as they happen."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        for text in (turn.thinking, turn.text):
            if text.strip():
                self._print(text.strip(), "italic")

    async def tool(self, event: ToolEvent) -> None:
        self._print(f"> {_called(event)}", "cyan" if event.ok else "red")
        if event.output:
            self._print(event.output, "dim")

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._print("(the agent summarised its conversation and continues from the summary)", "dim")

    def _print(self, text: str, style: str) -> None:
        self._console.print(visible(text), style=style, markup=False, highlight=False)


def _called(event: ToolEvent) -> str:
    """Return the call as one string that begins with the tool's name. If the model wrote the call in the compact
    format, `event.arguments` begins with the name, and the name is not added again."""
    first, *_ = event.arguments.split(maxsplit=1) or [""]
    return event.arguments if first == event.name else f"{event.name} {event.arguments}"
