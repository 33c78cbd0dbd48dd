"""A small trace made the way a rollout makes one: two segments, late experts, a malformed call."""

from __future__ import annotations

import numpy as np
import pytest

from etude.trace import SegmentKind, StopCause, ToolEvent, Trace, TraceBuilder, TraceUsage


def _sample(builder: TraceBuilder, count: int, version: int, known_from: int = 0) -> None:
    """Samples tokens 100, 101, ... with experts for every position from `known_from` on."""
    tokens = np.arange(100, 100 + count, dtype=np.int32)
    rows = builder.length + count - known_from
    experts = np.arange(rows * 4, dtype=np.uint16).reshape(rows, 2, 2) % 8
    experts[-1] = 0xFFFF
    logprobs = -np.linspace(0.1, 1, count).astype(np.float32)
    versions = np.full(count, version, np.int32)
    builder.sampled(tokens, logprobs, versions, experts=experts, experts_from=known_from)


@pytest.fixture
def trace() -> Trace:
    builder = TraceBuilder()
    first = builder.start_segment(SegmentKind.START, None, [1, 2, 20, 30])
    _sample(builder, 3, version=4)
    builder.extend([5, 40, 8, 4])
    _sample(builder, 2, version=5, known_from=6)
    builder.start_segment(SegmentKind.SUMMARY, first, [1, 2, 21])
    _sample(builder, 1, version=5)
    call = {"id": "0", "type": "function", "function": {"name": "read", "arguments": '{"file": "calc.py"}'}}
    bad = {"id": "1", "type": "function", "function": {"name": "edit", "arguments": 'edit "calc'}}
    return Trace(
        id="g000001-m02-a0",
        task="clamp-low",
        split="train",
        group="g1",
        member=2,
        policy="v5",
        seed=(1 << 62) + 1,
        segments=builder.segments(),
        tools=[
            ToolEvent(0, 0, "read", "read calc.py", True, True, 0.01, "1 def clamp\n", 4),
            ToolEvent(0, 0, "edit", 'edit "calc', False, False, 0.0, "edit needs: file line text", 6),
        ],
        usage=TraceUsage(turns=3, tool_calls=2, invalid_calls=1, summaries=1, sampled_tokens=6),
        stop=StopCause.FINISHED,
        started=1_700_000_000.25,
        timing={"engine": 0.5, "tools": 0.01},
        diff="--- a/calc.py\n+++ b/calc.py\n",
        messages=[
            {"role": "system", "content": "Fix the bug."},
            {"role": "user", "content": "FAIL clamp(5, 1, 3)"},
            {"role": "assistant", "content": None, "tool_calls": [call, bad]},
            {"role": "tool", "tool_call_id": "0", "content": "1 def clamp\n"},
            {"role": "tool", "tool_call_id": "1", "content": "edit needs: file line text"},
            {"role": "assistant", "content": "line 3 is wrong"},
            {"role": "system", "content": "Fix the bug. So far: line 3 is wrong"},
            {"role": "assistant", "content": "done"},
        ],
    )
