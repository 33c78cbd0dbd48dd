"""Prints what an agent does, line by line, and its changes, for terminals and pipes."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.syntax import Syntax

from etude.cli.visible import visible
from etude.harness import Conversation, Observer, Turn
from etude.trace import ToolEvent, TraceUsage


class Show(Observer):
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
        print_text(self._console, text, style)


def print_text(console: Console, text: str, style: str) -> None:
    console.print(visible(text), style=style, markup=False, highlight=False)


def print_diff(console: Console, diff: str) -> None:
    if console.is_terminal and diff:
        # Wrapped, not cut off: the user must see every character before saying yes.
        console.print(Syntax(visible(diff.rstrip("\n")), "diff", background_color="default", word_wrap=True))
    else:
        sys.stdout.write(visible(diff))


def _called(event: ToolEvent) -> str:
    """Return a tool call as one string that begins with the tool's name. Arguments in the compact format already begin
    with it, and are returned unchanged."""
    first, *_ = event.arguments.split(maxsplit=1) or [""]
    return event.arguments if first == event.name else f"{event.name} {event.arguments}"
