"""Traces: the record of a rollout, its file formats and its exports.

Training reads the token ids of traces and never re-tokenises text.
"""

from etude.trace.atif import to_atif
from etude.trace.builder import TraceBuilder
from etude.trace.file import TraceError, TraceWriter, read_traces, write_traces
from etude.trace.lines import from_line, to_line
from etude.trace.live import LiveTrace, read_live
from etude.trace.markdown import to_markdown
from etude.trace.openai import to_openai, to_openai_contexts
from etude.trace.steps import StepsFile, read_steps
from etude.trace.trace import (
    UNKNOWN_EXPERT,
    UNSAMPLED_VERSION,
    Break,
    BreakKind,
    Segment,
    SegmentKind,
    StopCause,
    ToolEvent,
    Trace,
    TraceUsage,
)

__all__ = [
    "UNKNOWN_EXPERT",
    "UNSAMPLED_VERSION",
    "Break",
    "BreakKind",
    "LiveTrace",
    "Segment",
    "SegmentKind",
    "StepsFile",
    "StopCause",
    "ToolEvent",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "TraceUsage",
    "TraceWriter",
    "from_line",
    "read_live",
    "read_steps",
    "read_traces",
    "to_atif",
    "to_line",
    "to_markdown",
    "to_openai",
    "to_openai_contexts",
    "write_traces",
]
