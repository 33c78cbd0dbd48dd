"""Traces as Markdown pages for reading.

Invariant: text from models, files and commands cannot change the structure of the page. Such text is inside a fence
longer than any run of backticks in it, or inside a code span, so it can neither end its block nor start a heading,
link, image or HTML.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from etude.trace.trace import SegmentKind, Trace

_APART = (SegmentKind.AGENT, SegmentKind.ASIDE)

_UNSEEN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_UNSEEN |= dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029), 0xFFFD)
"""Maps control characters and characters that change the text direction to visible replacements."""


def to_markdown(trace: Trace, *, signals: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return a Markdown page with the task, the turns, the diff, the usage, and the user's feedback signals."""
    parts = [
        f"# Trace {_span(trace.id)}",
        "\n".join(f"- {name}: {_span(str(value))}" for name, value in _about(trace) if value not in ("", None)),
        *_conversation(trace.messages),
    ]
    if trace.error:
        parts += ["## Error", _fence(trace.error)]
    if trace.diff:
        parts += ["## Change", _fence(trace.diff, "diff")]
    spent = [(name, value) for name, value in asdict(trace.usage).items() if value]
    spent += [(f"seconds, {name}", round(value, 3)) for name, value in trace.timing.items()]
    if spent:
        parts += ["## Spent", _table(("what", "how much"), spent)]
    if signals:
        rows = [(signal["what"], json.dumps(_without(signal, "what", "time", "changes"))) for signal in signals]
        parts += ["## Signals", _table(("what", "how"), rows)]
    return "\n\n".join(parts) + "\n"


def _about(trace: Trace) -> Iterator[tuple[str, object]]:
    yield "task", trace.task
    yield "policy", trace.policy
    yield "stop", str(trace.stop)
    yield "split", trace.split
    yield "group", trace.group
    apart = Counter(str(segment.kind) for segment in trace.segments if segment.kind in _APART)
    yield "beside it", ", ".join(f"{count} {kind}" for kind, count in apart.items())
    breaks = Counter(str(found.kind) for segment in trace.segments for found in segment.breaks)
    yield "breaks", ", ".join(f"{count} {kind}" for kind, count in breaks.items())


def _conversation(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    turn = 0
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        role, text = str(message["role"]), _text(message.get("content"))
        if role == "assistant":
            turn += 1
            yield f"## Turn {turn}"
            yield from _acted(message, text)
            names |= {str(call["id"]): str(call["function"]["name"]) for call in message.get("tool_calls") or ()}
        elif role == "tool":
            yield f"Output of {_span(names.get(str(message.get('tool_call_id')), 'a call'))}:"
            yield _fence(text)
        elif role == "system" and place:
            yield "## Summary"
            yield "The context was full: the agent goes on from its own summary, and sees nothing above this line."
            yield _folded("system prompt", text)
        elif role == "system":
            yield _folded("system prompt", text)
        else:
            yield "## User"
            yield _fence(text)


def _acted(message: Mapping[str, Any], text: str) -> Iterator[str]:
    if thinking := _text(message.get("reasoning_content")):
        yield _folded("thinking", thinking)
    if text:
        yield _fence(text)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        yield f"Call of {_span(str(function['name']))}:"
        yield from _arguments(arguments if isinstance(arguments, str) else json.dumps(arguments))


def _arguments(raw: str) -> Iterator[str]:
    """Yield a call's arguments as Markdown: each multi-line string as its own text block, everything else as JSON."""
    try:
        values = json.loads(raw)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        yield _fence(raw)
        return
    long = {name: value for name, value in values.items() if isinstance(value, str) and "\n" in value}
    short = {name: value for name, value in values.items() if name not in long}
    if short or not long:
        yield _fence(json.dumps(short, indent=2, ensure_ascii=False), "json")
    for name, value in long.items():
        yield f"{_span(name)}:"
        yield _fence(value)


def _folded(title: str, text: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{_fence(text)}\n\n</details>"


def _fence(text: str, language: str = "text") -> str:
    shown = text.translate(_UNSEEN).rstrip("\n")
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{ticks}{language}\n{shown}\n{ticks}"


def _span(text: str) -> str:
    """Return text as a code span that can also be used inside a table."""
    shown = " ".join(text.translate(_UNSEEN).split()) or " "
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{ticks} {shown} {ticks}" if "`" in shown else f"`{shown}`"


def _table(head: tuple[str, str], rows: Sequence[tuple[object, object]]) -> str:
    def cell(value: object) -> str:
        return _span(str(value)).replace("|", "\\|")

    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {cell(name)} | {cell(value)} |" for name, value in rows)])


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _text(content: object) -> str:
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
