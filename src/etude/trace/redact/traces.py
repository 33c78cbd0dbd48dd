"""Removes secrets from whole traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from etude.trace.redact.redactor import Redactor, json_of
from etude.trace.trace import ToolEvent, Trace


def redacted(trace: Trace, redactor: Redactor) -> Trace:
    """Return a copy of a trace without secrets. If anything was redacted, the copy has no segments, because their token
    ids contain the same text."""
    for text in [*_arguments(trace), *(tool.arguments for tool in trace.tools)]:
        redactor.learn(json_of(text))  # secrets visible only in decoded JSON must be known before cleaning starts
    redactor.learn([trace.messages, [asdict(tool) for tool in trace.tools], trace.diff, trace.task, trace.error])
    before = redactor.counts.copy()
    clean = redactor.clean
    copy = replace(
        trace,
        **{name: clean(getattr(trace, name)) for name in ("id", "task", "group", "policy", "error", "diff", "timing")},
        messages=[_message(message, redactor) for message in trace.messages],
        tools=[_tool(tool, redactor) for tool in trace.tools],
    )
    return copy if redactor.counts == before else replace(copy, segments=[])


def _arguments(trace: Trace) -> list[str]:
    calls: list[Any] = [call for message in trace.messages for call in message.get("tool_calls") or ()]  # type: ignore[attr-defined]
    return [call["function"]["arguments"] for call in calls if isinstance(call["function"]["arguments"], str)]


def _message(message: Mapping[str, Any], redactor: Redactor) -> dict[str, object]:
    cleaned = redactor.clean({name: value for name, value in message.items() if name != "tool_calls"})
    if "tool_calls" in message:
        cleaned["tool_calls"] = [_call(call, redactor) for call in message["tool_calls"]]
    return dict(cleaned)


def _call(call: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.pop("arguments")
    written = redactor.arguments(arguments) if isinstance(arguments, str) else redactor.clean(arguments)
    rest = {name: value for name, value in call.items() if name != "function"}
    return {**redactor.clean(rest), "function": {**redactor.clean(function), "arguments": written}}


def _tool(tool: ToolEvent, redactor: Redactor) -> ToolEvent:
    return replace(
        tool,
        name=redactor.clean(tool.name),
        arguments=redactor.arguments(tool.arguments),
        output=redactor.clean(tool.output),
    )
