"""etude trace show: prints traces turn by turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from etude.cli.show import print_text
from etude.cli.trace.find_traces import Subject, open_subjects

Line = tuple[str, str]
"""A line of output: its text and its style."""


def show_command(what: str, only: list[str], sessions: Path | None) -> int:
    console = Console(soft_wrap=True)
    for number, subject in enumerate(open_subjects(what, only, sessions)):
        if number:
            console.rule()
        for text, style in _lines(subject):
            print_text(console, text, style)
    return 0


def _lines(subject: Subject) -> Iterator[Line]:
    trace = subject.trace
    yield f"{trace.id}: {trace.policy or 'no model named'}, {trace.stop}", "bold"
    for place, message in enumerate(trace.messages):
        yield from _message(message, place)
    if trace.error:
        yield trace.error, "red"
    if trace.diff:
        yield trace.diff.rstrip("\n"), "dim"
    spent = {name: value for name, value in asdict(trace.usage).items() if value}
    yield ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in spent.items()), "dim"
    for signal in subject.session.signals if subject.session else []:
        told = {name: value for name, value in signal.items() if name not in ("what", "time", "changes")}
        yield f"{signal['what'].replace('_', ' ')} {json.dumps(told)}", "dim"


def _message(message: Mapping[str, Any], place: int) -> Iterator[Line]:
    role, text = message["role"], str(message.get("content") or "").rstrip("\n")
    if role == "system":
        yield ("(continued from its own summary)" if place else "(system prompt)"), "dim"
    elif role == "user":
        yield text, "bold"
    elif role == "tool":
        yield text, "dim"
    else:
        if message.get("reasoning_content"):
            yield str(message["reasoning_content"]).rstrip("\n"), "italic dim"
        if text:
            yield text, ""
        for call in message.get("tool_calls") or ():
            function = call["function"]
            yield f"> {function['name']} {function['arguments']}", "cyan"
