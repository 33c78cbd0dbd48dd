"""Traces as OpenAI chat messages, one record per trace: what fine-tuning services and other harnesses read.

Arguments of calls are strings exactly as the conversation held them. Those that are no valid JSON survive, because a
malformed call is part of what happened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from etude.trace.trace import Trace


def to_openai(trace: Trace) -> dict[str, Any]:
    """{"messages": [...], "metadata": {...}}, ready for json.dumps."""
    metadata = {name: getattr(trace, name) for name in ("id", "task", "split", "group", "member", "policy", "seed")}
    return {
        "messages": [openai_message(message) for message in trace.messages],
        "metadata": metadata | {"stop": str(trace.stop)},
    }


def openai_message(message: Mapping[str, Any]) -> dict[str, Any]:
    copy = dict(message)
    calls = copy.get("tool_calls")
    if calls:
        copy["tool_calls"] = [_call(call) for call in calls]
    return copy


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"])
    return {**call, "type": "function", "function": function}
