"""Traces of rollouts in progress, written to disk turn by turn, so that a killed process leaves its rollouts readable.

Invariant: reading such a file gives the trace after its last complete turn, token ids included (and possibly ids of the
turn in progress). The stop cause of such a trace is an infrastructure error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from etude.trace.file import TraceError
from etude.trace.steps import StepsFile, read_steps
from etude.trace.trace import StopCause, ToolEvent, Trace, TraceUsage

SUFFIX = ".steps"
_HEAD = ("id", "task", "split", "group", "member", "policy", "seed", "started")


class LiveTrace:
    """The file of a rollout in progress. The rollout's TraceBuilder writes to `steps`; `done` removes the file."""

    def __init__(self, folder: Path, head: Trace) -> None:
        """Create the file of this trace in `folder`. `head` holds the fields of the trace that are known before the
        rollout starts. A file that exists for the same trace id is left over from an earlier start and is replaced."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise TraceError(f"cannot write traces to {folder}: {error.strerror}") from error
        name = re.sub(r"[^A-Za-z0-9._-]", "_", head.id).lstrip(".") or "trace"
        self.steps = StepsFile(folder / f"{name}{SUFFIX}", keep=0)
        self.steps.note("begin", **{name: getattr(head, name) for name in _HEAD})

    def turn(self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolEvent], usage: TraceUsage) -> None:
        """Record the messages and tool events since the last turn, and the usage of the rollout so far."""
        self.steps.note("turn", messages=list(messages), tools=[asdict(tool) for tool in tools], usage=asdict(usage))

    def done(self) -> None:
        self.steps.close()
        self.steps.path.unlink(missing_ok=True)


def read_live(path: Path) -> Trace:
    segments, notes = read_steps(path)
    begun = next((note for note in notes if note["what"] == "begin"), None)
    if begun is None:
        raise TraceError(
            f"{path} does not say which rollout it belongs to: it holds the ids of a session, or its rollout was "
            "killed before its first record"
        )
    turns = [note for note in notes if note["what"] == "turn"]
    usage = turns[-1]["usage"] if turns else {}
    return Trace(
        **{name: begun[name] for name in _HEAD},
        segments=segments,
        tools=[ToolEvent(**tool) for turn in turns for tool in turn["tools"]],
        usage=TraceUsage(**{field.name: usage.get(field.name, 0) for field in fields(TraceUsage)}),
        stop=StopCause.ERROR,
        error="the rollout's process ended before the rollout did",
        messages=[message for turn in turns for message in turn["messages"]],
    )
