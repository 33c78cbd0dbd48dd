"""Finds the traces that a user names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from etude.cli.sessions.commands import place_of
from etude.harness.sessions import SavedSession, SessionError, as_trace, load_session
from etude.harness.sessions.record import LOG
from etude.trace import Trace, TraceError, from_line, read_live, read_traces
from etude.trace.live import SUFFIX


@dataclass(frozen=True, slots=True)
class Subject:
    trace: Trace
    session: SavedSession | None = None


def open_subjects(what: str, only: Collection[str], sessions: Path | None) -> Iterator[Subject]:
    """Yield the traces that `what` names: a file or folder of traces, or a session. With `only`, yield only those whose
    id is in `only`. Raise TraceError if there are none."""
    found = False
    for subject in _subjects(what, only, sessions):
        if not only or subject.trace.id in only:
            found = True
            yield subject
    if not found:
        raise TraceError(f"{what} holds no trace {' or '.join(only)}".rstrip() if only else f"{what} holds no traces")


def _subjects(what: str, only: Collection[str], sessions: Path | None) -> Iterator[Subject]:
    path = Path(what)
    if path.suffix == ".jsonl" and path.name != LOG and path.is_file():
        with path.open(encoding="utf-8") as lines:
            yield from (Subject(from_line(line)) for line in lines)
    elif path.suffix == SUFFIX and path.is_file():
        yield Subject(read_live(path))
    elif path.exists() and not (path / LOG).exists():
        yield from (Subject(trace) for trace in read_traces(path, only=only or None))
    else:
        try:
            place = place_of(what, sessions)
        except SessionError as error:
            raise TraceError(f"{what} is neither a trace file nor a folder of traces, and {error}") from error
        session = load_session(place)
        yield Subject(as_trace(session), session)
