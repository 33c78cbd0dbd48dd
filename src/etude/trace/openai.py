"""Traces as OpenAI chat messages, for fine-tuning services and other harnesses.

The arguments of calls are strings, exactly as in the conversation. Invalid JSON is kept, because a malformed call is
part of what happened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from etude.trace.trace import Trace

Json = dict[str, Any]


def to_openai(trace: Trace, *, tools: Sequence[Mapping[str, Any]] = ()) -> Json:
    """Convert a trace to one record. The key "tools" is absent if there are no tools."""
    metadata = {name: getattr(trace, name) for name in ("id", "task", "split", "group", "member", "policy", "seed")}
    return {
        "messages": [openai_message(message) for message in trace.messages],
        **({"tools": list(tools)} if tools else {}),
        "metadata": metadata | {"stop": str(trace.stop)},
    }


def to_openai_contexts(trace: Trace, *, tools: Sequence[Mapping[str, Any]] = ()) -> list[Json]:
    """Return one record per context that the model saw; a self-summary ends one context and starts the next.

    Use these records for fine-tuning, because the model never saw the messages of all contexts in one conversation."""
    whole = to_openai(trace, tools=tools)
    starts = [place for place, message in enumerate(whole["messages"]) if place and message["role"] == "system"]
    edges = [0, *starts, len(whole["messages"])]
    return [
        {
            **whole,
            "messages": whole["messages"][start:end],
            "metadata": {**whole["metadata"], "context": number, "contexts": len(edges) - 1},
        }
        for number, (start, end) in enumerate(pairwise(edges))
    ]


def openai_message(message: Mapping[str, Any]) -> Json:
    copy = dict(message)
    calls = copy.get("tool_calls")
    if calls:
        copy["tool_calls"] = [_call(call) for call in calls]
    return copy


def _call(call: Mapping[str, Any]) -> Json:
    function = dict(call["function"])
    if not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"])
    return {**call, "type": "function", "function": function}
