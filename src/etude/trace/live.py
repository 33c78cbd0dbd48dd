"""A trace that is still being made, on the disk turn by turn: what is left of a rollout whose process was killed.

Invariant: what is read back is the trace as it was after its last whole turn, ids and all (those of the next turn may
be there too); it counts as an error of ours.
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
    """`steps` is the sink of the rollout's TraceBuilder. The file goes when the trace is whole: `done`."""

    def __init__(self, folder: Path, head: Trace) -> None:
        """`head`: what is known of the trace before it begins. A file of the same id is of an earlier try, and goes."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise TraceError(f"cannot write traces to {folder}: {error.strerror}") from error
        name = re.sub(r"[^A-Za-z0-9._-]", "_", head.id).lstrip(".") or "trace"
        self.steps = StepsFile(folder / f"{name}{SUFFIX}", keep=0)
        self.steps.note("begin", **{name: getattr(head, name) for name in _HEAD})

    def turn(self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolEvent], usage: TraceUsage) -> None:
        """What was said and done since the last turn; `usage` is of all."""
        self.steps.note("turn", messages=list(messages), tools=[asdict(tool) for tool in tools], usage=asdict(usage))

    def done(self) -> None:
        self.steps.close()
        self.steps.path.unlink(missing_ok=True)


def read_live(path: Path) -> Trace:
    segments, notes = read_steps(path)
    begun = next((note for note in notes if note["what"] == "begin"), None)
    if begun is None:
        raise TraceError(f"{path} holds ids of a session, or of a rollout that did not begin: nothing says of which")
    turns = [note for note in notes if note["what"] == "turn"]
    usage = turns[-1]["usage"] if turns else {}
    return Trace(
        **{name: begun[name] for name in _HEAD},
        segments=segments,
        tools=[ToolEvent(**tool) for turn in turns for tool in turn["tools"]],
        usage=TraceUsage(**{field.name: usage.get(field.name, 0) for field in fields(TraceUsage)}),
        stop=StopCause.ERROR,
        error="its process ended before it did",
        messages=[message for turn in turns for message in turn["messages"]],
    )
