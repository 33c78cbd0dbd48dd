"""The on-disk log of an RL run, from which a killed run is rebuilt.

Write order: a rollout's trace comes before its record, and its record before its event. So every event in the log has
its trace, and a crash between two writes costs at most one rollout, which is sampled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.journal import append_rows, drop_torn_line, read_rows
from etude.rl.reconciler import Event, event_from_json, event_to_json
from etude.rollout import RolloutResult
from etude.tasks import Judgement, Verdict
from etude.trace import Trace
from etude.trace.file import TraceWriter, read_traces

_USAGE = ("turns", "tool_calls", "invalid_calls", "summaries", "sampled_tokens")


@dataclass(frozen=True, slots=True)
class Sampled:
    """A finished rollout that is not on disk yet, with the event to log for it."""

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
            drop_torn_line(file)
        self._writer = TraceWriter(self._traces)

    def events(self) -> list[Event]:
        return [event_from_json(values) for values in read_rows(self._events)]

    def append(self, event: Event) -> None:
        append_rows(self._events, [event_to_json(event)])

    def write(self, sampled: Sequence[Sampled]) -> None:
        self._writer.write([s.result.trace for s in sampled])
        append_rows(self._records, [_record(s.result) for s in sampled])
        append_rows(self._events, [event_to_json(s.event) for s in sampled])

    def restore(self, wanted: set[str]) -> dict[str, tuple[Trace, Verdict]]:
        """Return each finished rollout in `wanted` by id: its trace, as `for_training` leaves it, and its verdict."""
        if not wanted:
            return {}
        verdicts = {
            str(r["id"]): Verdict(Judgement(r["judgement"]), str(r["reason"]))
            for r in read_rows(self._records)
            if r["id"] in wanted
        }
        found = {t.id: t for t in read_traces(self._traces, only=verdicts.keys())}
        return {name: (for_training(trace), verdicts[name]) for name, trace in found.items()}


def for_training(trace: Trace) -> Trace:
    """Strip a trace to what training needs: no messages, tools or diff."""
    return replace(trace, messages=[], tools=[], diff="")


def _record(result: RolloutResult) -> dict[str, Any]:
    trace, verdict = result.trace, result.verdict
    return {
        **{name: getattr(trace, name) for name in ("id", "task", "group", "member")},
        "judgement": str(verdict.judgement),
        "reason": verdict.reason,
        "stop": str(trace.stop),
        "error": trace.error,
        "versions": list(trace.version_span()),
        **{name: getattr(trace.usage, name) for name in _USAGE},
        "claimed": str(trace.stop) == "finished",
        "timing": trace.timing,
    }
