"""The event log of a background agent, `events.jsonl`, and how its events are printed.

The log is for people who follow an agent, and long texts in it are cut off. The complete record is the session, which
is written turn by turn. An incomplete last line is ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from etude.cli.show import print_text
from etude.cli.wording import STOPS, count
from etude.harness import Conversation, Observer, Turn
from etude.harness.background import Ended
from etude.trace import ToolEvent, TraceUsage

EVENTS = "events.jsonl"
_KEPT, _SHOWN_LINES, _SHOWN_ARGUMENT = 4_000, 8, 100


class EventLog(Observer):
    """Observer that appends a JSON line to the log for each event."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # ends the incomplete line of a process that was killed

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        self._line("turn", thinking=turn.thinking[:_KEPT], text=turn.text[:_KEPT], calls=[c.name for c in turn.calls])

    async def tool(self, event: ToolEvent) -> None:
        self._line(
            "tool",
            name=event.name,
            arguments=event.arguments[:_KEPT],
            ok=event.ok,
            seconds=round(event.seconds, 3),
            output=event.output[:_KEPT],
            lines=event.output.count("\n") + bool(event.output),
        )

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._line("summary", text=turn.text[:_KEPT])

    def waits(self, ahead: int) -> None:
        self._line("waits", ahead=ahead)

    def asked(self, prompt: str) -> None:
        self._line("asked", text=prompt[:_KEPT])

    def goes_on(self) -> None:
        self._line("goes_on")

    def ended(self, ended: Ended) -> None:
        self._line("ended", stop=ended.stop, error=ended.error)

    def _line(self, kind: str, **fields: object) -> None:
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **fields}, separators=(",", ":"))
        os.write(self._descriptor, f"{line}\n".encode())


def read_events(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the events of the complete lines from byte `offset` on, and the offset of the next line."""
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return list(_parsed(whole)), offset + len(whole)


def _parsed(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # incomplete, since its process was killed


def show_event(console: Console, event: dict[str, Any]) -> None:
    match event["kind"]:
        case "waits":
            print_text(console, f"(waiting: {event['ahead']} before it)", "dim")
        case "asked":
            print_text(console, event["text"].strip(), "bold")
        case "goes_on":
            print_text(console, "(continues after its last complete turn)", "dim")
        case "turn":
            for text in (event["thinking"], event["text"]):
                if text.strip():
                    print_text(console, text.strip(), "italic")
        case "tool":
            print_text(console, f"> {event['name']} {_brief(event['arguments'])}", "cyan" if event["ok"] else "red")
            lines = event["output"].splitlines()[:_SHOWN_LINES]
            if lines:
                print_text(console, "\n".join(f"  {line}" for line in lines), "dim")
            if (more := event["lines"] - len(lines)) > 0:
                print_text(console, f"  ({count(more, 'more line')})", "dim")
        case "summary":
            print_text(console, "(the agent summarised its conversation and continues from the summary)", "dim")
        case "ended":
            why = f": {event['error']}" if event["error"] else ""
            print_text(console, f"({STOPS.get(event['stop'], event['stop'])}{why})", "dim")


def _brief(arguments: str) -> str:
    """Return the values of a call's JSON arguments in one line, each cut to a maximum length."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return _cut(arguments)
    values = parsed.values() if isinstance(parsed, dict) else [parsed]
    return " ".join(_cut(value if isinstance(value, str) else json.dumps(value)) for value in values)


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN_ARGUMENT else f"{flat[: _SHOWN_ARGUMENT - 1]}…"
