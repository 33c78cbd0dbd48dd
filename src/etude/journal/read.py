"""Reading a journal: every process's entries, merged by time.

Invariant: a torn last line (its writer was killed) is left out; damage anywhere else is an error that names the line.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etude.journal.journal import JournalError
from etude.journal.lines import whole_lines


@dataclass(frozen=True, slots=True)
class Entry:
    time: float
    """Unix seconds."""
    process: str
    pid: int
    kind: str
    """"metrics", "progress", "wait", or the kind of an event."""
    fields: dict[str, object]


def read_journal(folder: Path, *, kind: str | None = None) -> Iterator[Entry]:
    """All entries (or those of one kind), oldest first; nothing for a folder that does not exist."""
    files = sorted(Path(folder).glob("*.jsonl"))
    merged = heapq.merge(
        *(_read_file(file) for file in files), key=lambda entry: (entry.time, entry.process, entry.pid)
    )
    return (entry for entry in merged if kind is None or entry.kind == kind)


def waits(folder: Path) -> dict[str, dict[str, float]]:
    """Who waited for whom: {waiter: {on: seconds}}. Waits that overlap in one waiter count once, so that a process
    with a hundred rollouts waiting for the engine does not wait longer than it lives."""
    spans: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    for entry in read_journal(folder, kind="wait"):
        seconds = float(str(entry.fields["seconds"]))
        spans[entry.process, entry.pid, str(entry.fields["on"])].append((entry.time - seconds, entry.time))
    totals: dict[str, dict[str, float]] = {}
    for (process, _, on), waited in sorted(spans.items()):
        of_process = totals.setdefault(process, {})
        of_process[on] = round(of_process.get(on, 0.0) + _covered(waited), 3)
    return totals


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds that at least one of the spans covers."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _read_file(file: Path) -> Iterator[Entry]:
    process, pid = _writer(file)
    for number, line in enumerate(whole_lines(file), start=1):
        try:
            values = json.loads(line)
            entry = Entry(float(values["time"]), process, pid, str(values["kind"]), dict(values["fields"]))
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{file} line {number} is damaged: expected an entry, found {line[:40]!r}") from error
        yield entry


def _writer(file: Path) -> tuple[str, int]:
    try:
        process, pid, _ = file.stem.rsplit("-", 2)
        return process, int(pid)
    except ValueError as error:
        raise JournalError(f"{file} is no journal: expected a name like <process>-<pid>-<start>.jsonl") from error
