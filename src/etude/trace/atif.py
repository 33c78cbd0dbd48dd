"""Traces as ATIF 1.7 trajectories (Harbor's exchange format).

Data for which ATIF has no field is under `extra`: the weight version of every sampled token, the segment graph, and
what the caller adds (reward, verdict). The experts chosen by the MoE router are not exported. A trace without messages
gets one system step that says so, because ATIF requires at least one step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from etude.trace.trace import Segment, Trace

SCHEMA_VERSION = "ATIF-v1.7"


def to_atif(
    trace: Trace,
    *,
    agent_version: str,
    extra: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Convert a trace to a trajectory. The entries of `extra` go to the root's `extra`; `tools` are the agent's tools
    in OpenAI's schema."""
    steps = _steps(trace) or [{"step_id": 1, "source": "system", "message": trace.error or "nothing was said"}]
    steps[0]["timestamp"] = datetime.fromtimestamp(trace.started, UTC).isoformat()
    spans = [span for segment in trace.segments for span in _sampled_spans(segment)]
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": trace.id,
        "trajectory_id": trace.id,
        "agent": {
            "name": "etude",
            "version": agent_version,
            "model_name": trace.policy,
            **({"tool_definitions": list(tools)} if tools else {}),
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(span.start for span in spans),
            "total_completion_tokens": sum(span.end - span.start for span in spans),
            "total_steps": len(steps),
        },
        "extra": {
            **{name: getattr(trace, name) for name in ("task", "split", "group", "member", "seed", "error", "diff")},
            "stop": str(trace.stop),
            "usage": asdict(trace.usage),
            "timing": trace.timing,
            "segments": [_about(segment) for segment in trace.segments],
            **(extra or {}),
        },
    }


def _about(segment: Segment) -> dict[str, Any]:
    breaks = {"breaks": [asdict(found) for found in segment.breaks]} if segment.breaks else {}
    about = {"id": segment.id, "parent": segment.parent, "kind": str(segment.kind), "tokens": len(segment.tokens)}
    return about | breaks


@dataclass(frozen=True, slots=True)
class _Span:
    """Consecutive sampled tokens in one segment, from position `start` up to but not including `end`."""

    segment: Segment
    start: int
    end: int

    def metrics(self) -> dict[str, Any]:
        part = slice(self.start, self.end)
        return {
            "prompt_tokens": self.start,
            "completion_tokens": self.end - self.start,
            "prompt_token_ids": self.segment.tokens[: self.start].tolist(),
            "completion_token_ids": self.segment.tokens[part].tolist(),
            "logprobs": self.segment.logprobs[part].tolist(),
            "extra": {"segment": self.segment.id, "versions": self.segment.versions[part].tolist()},
        }


def _sampled_spans(segment: Segment) -> Iterator[_Span]:
    edges = np.flatnonzero(np.diff(segment.sampled.astype(np.int8), prepend=0, append=0))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield _Span(segment, int(start), int(end))


def _steps(trace: Trace) -> list[dict[str, Any]]:
    """Return one step per message. Tool outputs become observations of the step that made the call."""
    spans = [span for segment in trace.main for span in _sampled_spans(segment)]
    answers = sum(_acts(message) for message in trace.messages)
    # A rollout that was killed within a turn has tokens without a message; then steps cannot be matched to tokens.
    matched = iter(spans) if len(spans) == answers else iter(())
    steps: list[dict[str, Any]] = []
    for place, message in enumerate(trace.messages):
        if message["role"] == "tool":
            _observe(steps, message)
            continue
        steps.append(_step(len(steps) + 1, message, trace.policy, next(matched, None) if _acts(message) else None))
        if message["role"] == "system" and place:
            # A self-summary: from here on the model sees only what follows.
            steps[-1]["extra"] = {"context_management": {"type": "compaction", "boundary": "replace"}}
    return steps


def _acts(message: Mapping[str, Any]) -> bool:
    return str(message["role"]) == "assistant"


def _step(number: int, message: Mapping[str, Any], policy: str, span: _Span | None) -> dict[str, Any]:
    source = "agent" if _acts(message) else message["role"]
    step: dict[str, Any] = {"step_id": number, "source": source, "message": message.get("content") or ""}
    if source != "agent":
        return step
    step |= {"model_name": policy, "llm_call_count": 1}
    if message.get("reasoning_content"):
        step["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        step["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if span is not None:
        step["metrics"] = span.metrics()
    return step


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a tool call. ATIF requires an object as arguments; other arguments are kept verbatim under `extra`."""
    raw = call["function"]["arguments"]
    arguments: Any = raw
    if isinstance(raw, str):
        try:
            arguments = json.loads(raw)
        except ValueError:
            arguments = None
    written = {"tool_call_id": str(call["id"]), "function_name": str(call["function"]["name"])}
    if isinstance(arguments, dict):
        return written | {"arguments": arguments}
    return written | {"arguments": {}, "extra": {"raw_arguments": raw}}


def _observe(steps: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    """Add a tool output to the step that made the call. If no step made it, add the output to the last step, without
    the call's id."""
    call = str(message.get("tool_call_id"))
    step = next((s for s in reversed(steps) if any(c["tool_call_id"] == call for c in s.get("tool_calls", ()))), None)
    result: dict[str, Any] = {"content": message.get("content") or ""}
    if step is None:
        if not steps:
            steps.append({"step_id": 1, "source": "system", "message": ""})
        step = steps[-1]
    else:
        result = {"source_call_id": call, **result}
    step.setdefault("observation", {"results": []})["results"].append(result)
