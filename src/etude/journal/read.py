"""The reading side of the journal: the entries of all processes, merged by time.

Invariant: an incomplete last line (its writer was killed) is ignored; damage anywhere else is an error that names the
line.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from etude.journal.journal import JournalError
from etude.journal.lines import whole_lines

Span = tuple[float, float]
"""Start and end of a time span, in Unix seconds."""


@dataclass(frozen=True, slots=True)
class Entry:
    time: float
    """Time of writing, in Unix seconds."""
    process: str
    pid: int
    kind: str
    """"metrics", "progress", "wait", or the kind of an event."""
    fields: dict[str, object]


def read_journal(folder: Path, *, kind: str | None = None) -> Iterator[Entry]:
    """Yield all journal entries, or those of one kind, oldest first; none if the folder does not exist."""
    files = sorted(Path(folder).glob("*.jsonl"))
    merged = heapq.merge(
        *(_read_file(file) for file in files), key=lambda entry: (entry.time, entry.process, entry.pid)
    )
    return (entry for entry in merged if kind is None or entry.kind == kind)


def wait_spans(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Span]]:
    """Return when each process waited for which other: {(waiter, on): spans}. Overlapping waits of one process are
    merged; otherwise a process with a hundred waiting rollouts would seem to wait for longer than it ran."""
    spans: dict[tuple[str, int, str], list[Span]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "wait":
            seconds = float(str(entry.fields["seconds"]))
            spans[entry.process, entry.pid, str(entry.fields["on"])].append((entry.time - seconds, entry.time))
    found: dict[tuple[str, str], list[Span]] = {}
    for (process, _, on), waited in sorted(spans.items()):
        found.setdefault((process, on), []).extend(_merged(waited))
    return found


def waits(folder: Path) -> dict[str, dict[str, float]]:
    """Return how long each process waited for which other process: {waiter: {on: seconds}}."""
    totals: dict[str, dict[str, float]] = {}
    for (process, on), spans in wait_spans(read_journal(folder, kind="wait")).items():
        totals.setdefault(process, {})[on] = round(sum(end - start for start, end in spans), 3)
    return totals


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _read_file(file: Path) -> Iterator[Entry]:
    process, pid = _writer(file)
    for number, line in enumerate(whole_lines(file), start=1):
        try:
            values = json.loads(line)
            entry = Entry(float(values["time"]), process, pid, str(values["kind"]), dict(values["fields"]))
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"{file} line {number} is damaged: expected a JSON object with time, kind and fields, "
                f"found {line[:40]!r}"
            ) from error
        yield entry


def _writer(file: Path) -> tuple[str, int]:
    try:
        process, pid, _ = file.stem.rsplit("-", 2)
        return process, int(pid)
    except ValueError as error:
        raise JournalError(
            f"{file} is not a journal file: expected a name like <process>-<pid>-<start>.jsonl"
        ) from error
