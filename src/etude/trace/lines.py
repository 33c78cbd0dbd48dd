"""Traces as JSON Lines, one complete trace per line, for training elsewhere.

Invariant: from_line(to_line(trace)) restores every field. A number that JSON cannot represent, such as an infinite
log-prob, is a TraceError.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from etude.trace.file import TraceError
from etude.trace.trace import Break, BreakKind, Segment, SegmentKind, StopCause, ToolEvent, Trace, TraceUsage

FORMAT = "etude-trace-lines/2"
_READ = (FORMAT, "etude-trace-lines/1")
"""The formats that are read; the first had no breaks."""
_PLAIN = ("id", "task", "split", "group", "member", "policy", "seed", "error", "started", "timing", "diff", "messages")


def to_document(trace: Trace) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **{name: getattr(trace, name) for name in _PLAIN},
        "stop": trace.stop.value,
        "usage": asdict(trace.usage),
        "tools": [asdict(tool) for tool in trace.tools],
        "segments": [_segment(segment) for segment in trace.segments],
    }


def to_line(trace: Trace) -> str:
    try:
        return json.dumps(to_document(trace), allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise TraceError(
            f"trace {trace.id} holds NaN or an infinite number, which JSON cannot represent ({error})"
        ) from error


def from_line(line: str) -> Trace:
    """Read a trace from one line of JSON. Raises TraceError if the line is not a trace of this format."""
    try:
        found = json.loads(line)
        form = found.get("format")
        if form in _READ:
            return _trace(found)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise TraceError(f"not the line of a trace: expected a JSON object of {FORMAT}, found {error!r}") from error
    if str(form).startswith("etude-trace-lines/"):
        raise TraceError(f"the line is {form}, this version reads {FORMAT} and older: update étude")
    raise TraceError(f"not the line of a trace: expected the format {FORMAT}, found {form!r}")


def _trace(found: dict[str, Any]) -> Trace:
    return Trace(
        **{name: found[name] for name in _PLAIN},
        stop=StopCause(found["stop"]),
        usage=TraceUsage(**{f.name: found["usage"].get(f.name, 0) for f in fields(TraceUsage)}),
        tools=[ToolEvent(**tool) for tool in found["tools"]],
        segments=[_read_segment(segment) for segment in found["segments"]],
    )


def _segment(segment: Segment) -> dict[str, Any]:
    experts = segment.experts
    return {
        "id": segment.id,
        "parent": segment.parent,
        "kind": segment.kind.value,
        "tokens": segment.tokens.tolist(),
        "sampled": segment.sampled.astype(int).tolist(),
        "logprobs": segment.logprobs.tolist(),
        "versions": segment.versions.tolist(),
        "experts": None if experts is None else base64.b64encode(experts.astype("<u2").tobytes()).decode(),
        "experts_shape": None if experts is None else list(experts.shape),
        "breaks": [asdict(found) for found in segment.breaks],
    }


def _read_segment(found: dict[str, Any]) -> Segment:
    experts = None
    if found["experts"] is not None:
        raw = base64.b64decode(found["experts"])
        experts = np.frombuffer(raw, "<u2").reshape(found["experts_shape"]).astype(np.uint16)
    return Segment(
        id=found["id"],
        parent=found["parent"],
        kind=SegmentKind(found["kind"]),
        tokens=np.array(found["tokens"], np.int32),
        sampled=np.array(found["sampled"], np.bool_),
        logprobs=np.array(found["logprobs"], np.float32),
        versions=np.array(found["versions"], np.int32),
        experts=experts,
        breaks=tuple(Break(BreakKind(each["kind"]), each["place"], each["detail"]) for each in found.get("breaks", ())),
    )
