"""What happened in a rollout, and its file format.

A trace is the source of truth for training; nothing is re-tokenised from it.
"""

from etude.trace.atif import to_atif
from etude.trace.builder import TraceBuilder
from etude.trace.file import TraceError, TraceWriter, read_traces, write_traces
from etude.trace.openai import to_openai
from etude.trace.trace import (
    UNKNOWN_EXPERT,
    UNSAMPLED_VERSION,
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
    "Segment",
    "SegmentKind",
    "StopCause",
    "ToolEvent",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "TraceUsage",
    "TraceWriter",
    "read_traces",
    "to_atif",
    "to_openai",
    "write_traces",
]
