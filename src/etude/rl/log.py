"""What an RL run leaves on disk as it goes, and what a killed run is rebuilt from.

Order matters: a rollout's trace is on disk before its record, and its record before its event. So an event in the log
always has its trace, and a death between two writes costs at most one rollout that is sampled again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.rl.reconciler import Event, event_from_json, event_to_json
from etude.rollout import RolloutResult
from etude.tasks import Judgement, Verdict
from etude.trace import Trace
from etude.trace.file import TraceWriter, read_traces


@dataclass(frozen=True, slots=True)
class Sampled:
    """One finished rollout, on its way to the disk."""

    event: Event
    result: RolloutResult


class RlLog:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._traces = folder / "traces"
        self._records = folder / "rollouts.jsonl"
        self._events = folder / "events.jsonl"
        self._traces.mkdir(parents=True, exist_ok=True)
        for file in (self._records, self._events):
            _drop_torn_line(file)
        self._writer = TraceWriter(self._traces)

    def events(self) -> list[Event]:
        return [event_from_json(values) for values in _lines(self._events)]

    def append(self, event: Event) -> None:
        _append(self._events, [event_to_json(event)])

    def write(self, sampled: Sequence[Sampled]) -> None:
        self._writer.write([s.result.trace for s in sampled])
        _append(self._records, [_record(s.result) for s in sampled])
        _append(self._events, [event_to_json(s.event) for s in sampled])

    def restore(self, wanted: set[str]) -> dict[str, tuple[Trace, Verdict]]:
        """Traces and verdicts of finished rollouts, by id, lightened for training."""
        if not wanted:
            return {}
        verdicts = {
            str(r["id"]): Verdict(Judgement(r["judgement"]), str(r["reason"]))
            for r in _lines(self._records)
            if r["id"] in wanted
        }
        found = {t.id: t for t in read_traces(self._traces) if t.id in verdicts}
        return {name: (for_training(trace), verdicts[name]) for name, trace in found.items()}


def for_training(trace: Trace) -> Trace:
    """The part of a trace that training needs: no texts."""
    return replace(trace, messages=[], tools=[], diff="")


def _record(result: RolloutResult) -> dict[str, Any]:
    trace, verdict = result.trace, result.verdict
    oldest, newest = trace.version_span()
    return {
        "id": trace.id,
        "task": trace.task,
        "group": trace.group,
        "member": trace.member,
        "judgement": str(verdict.judgement),
        "reason": verdict.reason,
        "stop": str(trace.stop),
        "error": trace.error,
        "versions": [oldest, newest],
        "turns": trace.usage.turns,
        "tool_calls": trace.usage.tool_calls,
        "invalid_calls": trace.usage.invalid_calls,
        "summaries": trace.usage.summaries,
        "sampled_tokens": trace.usage.sampled_tokens,
        "claimed": str(trace.stop) == "finished",
        "timing": trace.timing,
    }


def _append(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    """All of the lines, or none: what others may still append after a full disk is not glued to half a line."""
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with file.open("ab", buffering=0) as out:
        before = out.tell()
        written = 0
        try:
            written = out.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        except OSError:
            out.truncate(before)
            raise


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    if not file.exists():
        return
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def _drop_torn_line(file: Path) -> None:
    """A writer that was killed may have left half a line, which the next one must not be glued to."""
    if not file.exists():
        return
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        with file.open("r+b") as out:
            out.truncate(whole)
