"""The results of an evaluation on disk: one line of results.jsonl per finished sample, and its trace in traces/.

Invariant: a sample's trace is written before its line, so every line has a trace. A torn last line is dropped and its
sample runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from etude.journal import append_rows, drop_torn_line, read_rows
from etude.rollout.job import RolloutResult
from etude.tasks.task import Task
from etude.tasks.verdict import Judgement
from etude.trace.file import TraceWriter
from etude.trace.trace import StopCause, TraceUsage


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of results.jsonl: what an evaluation stores of a rollout in addition to its trace."""

    id: str
    """The rollout's id without its attempt number."""
    trace: str
    task: str
    family: str
    kind: str
    greedy: bool
    judgement: Judgement
    reason: str
    stop: StopCause
    first_edit: bool | None
    """Whether the first edit alone passes; None if no edit was made or it was not graded."""
    edits: int
    turns: int
    tool_calls: int
    invalid_calls: int
    sampled_tokens: int
    summaries: int
    seconds: float
    cell: str = ""
    """A value of `tasks.Cell`; empty if the task's source has none."""
    summary_tokens: int = 0
    """Sampled tokens of self-summaries. All fields whose default is 0 are copied from the rollout's TraceUsage. They
    are 0 in results of older versions."""
    empty_summaries: int = 0
    cut_summaries: int = 0
    context_before: int = 0
    context_after: int = 0
    rereads: int = 0

    @property
    def passed(self) -> bool:
        return self.judgement is Judgement.PASS

    @property
    def valid(self) -> bool:
        return self.judgement.valid


_USAGE = {field.name for field in fields(Sample)} & {field.name for field in fields(TraceUsage)}


def sample_of(result: RolloutResult, task: Task) -> Sample:
    trace = result.trace
    return Sample(
        id=result.job.id.rpartition(".")[0],
        trace=trace.id,
        task=task.id,
        family=task.family,
        kind=task.kind,
        greedy=result.job.temperature == 0,
        judgement=result.verdict.judgement,
        reason=result.verdict.reason,
        stop=trace.stop,
        first_edit=result.first_edit.passed if result.first_edit is not None else None,
        edits=sum(event.name == "edit" and event.ok for event in trace.tools),
        seconds=round(trace.timing.get("total", 0.0), 3),
        cell=task.cell or "",
        **{name: getattr(trace.usage, name) for name in _USAGE},
    )


class ResultLog:
    def __init__(self, folder: Path) -> None:
        self._lines = folder / "results.jsonl"
        (folder / "traces").mkdir(parents=True, exist_ok=True)
        self._traces = TraceWriter(folder / "traces")
        drop_torn_line(self._lines)

    def read(self) -> list[Sample]:
        return read_samples(self._lines)

    def write(self, finished: Sequence[tuple[Sample, RolloutResult]]) -> None:
        self._traces.write([result.trace for _, result in finished])
        append_rows(self._lines, [asdict(sample) for sample, _ in finished])


def read_samples(path: Path) -> list[Sample]:
    return [
        Sample(**{**row, "judgement": Judgement(row["judgement"]), "stop": StopCause(row["stop"])})
        for row in read_rows(path)
    ]
