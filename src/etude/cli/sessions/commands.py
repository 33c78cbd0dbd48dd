"""The verbs list, check and consent of `etude sessions`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from etude.cli.agent_setup import LAST, default_sessions
from etude.cli.errors import FAILED
from etude.cli.visible import visible
from etude.cli.wording import count
from etude.harness.sessions import (
    SavedSession,
    SessionError,
    SessionRecord,
    being_written,
    list_sessions,
    load_session,
    record_kept_lines,
    sessions_of,
)
from etude.harness.sessions.as_trace import first_request
from etude.harness.sessions.record import LOG

T = TypeVar("T")
_TASK_LENGTH = 60
_UNITS = ((604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_ANSWERS = {"yes": True, "no": False}


def list_command(place: Path | None, folder: Path | None, as_json: bool) -> int:
    rows, code = _of_each(place, folder, _row)
    if as_json:
        print(json.dumps(rows))
    elif not rows:
        print(f"no sessions in {place or default_sessions()}", file=sys.stderr)
    for row in [] if as_json else rows:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["began"]))
        told = f"{row['state']}, {count(row['turns'], 'turn')}, {row['bytes'] / 1000:.0f} kB"
        print(visible(f"{row['id']}  {when}  {row['model']}  {told}\n    {row['folder']}\n    {row['task']}"))
    return code


def check_command(place: Path | None, folder: Path | None, as_json: bool) -> int:
    found, code = _of_each(place, folder, lambda session: (session.folder.name, record_kept_lines(session)))
    rows = [{"session": name, **signal} for name, signals in found for signal in signals]
    if as_json:
        print(json.dumps(rows))
    elif not rows:
        print("nothing is due", file=sys.stderr)
    for row in [] if as_json else rows:
        after, looked = _period(row["after_seconds"]), _period(row["looked_after_seconds"])
        kept = f"{row['lines_kept']} of {row['lines_added']} lines stand"
        print(f"{row['session']}: {kept} after {after} (looked after {looked})")
    return code


def consent_command(name: str, answer: str, place: Path | None) -> int:
    if answer not in _ANSWERS:
        raise SessionError(f"expected yes or no as the answer, found {answer!r}")
    folder = place_of(name, place)
    load_session(folder)
    record = SessionRecord.for_signals(folder)
    try:
        record.signal("consent", given=_ANSWERS[answer])
    finally:
        record.close()
    print(f"{folder.name} may {'' if _ANSWERS[answer] else 'not '}be trained on")
    return 0


def place_of(name: str, sessions: Path | None) -> Path:
    """Return a session's folder, given its path, its id, or `last`."""
    where = sessions or default_sessions()
    if name == LAST:
        newest = next(list_sessions(where), None)
        if newest is None:
            raise SessionError(f"there is no session in {where}")
        return newest
    for place in (Path(name), where / name):
        if (place / LOG).is_file():
            return place.resolve()
    raise SessionError(f"there is no session {name} in {where}: `etude sessions list` shows what there is")


def _of_each(place: Path | None, folder: Path | None, make: Callable[[SavedSession], T]) -> tuple[list[T], int]:
    """Return what `make` returns for each session, or for each that worked on `folder`, and the exit code. If a session
    cannot be read, the reason is printed and the exit code is 1."""
    where = place or default_sessions()
    made, code = [], 0
    for session in list(sessions_of(where, folder) if folder is not None else list_sessions(where)):
        try:
            made.append(make(load_session(session)))
        except SessionError as error:
            code = FAILED
            print(visible(str(error)), file=sys.stderr)
    return made, code


def _row(session: SavedSession) -> dict[str, Any]:
    lines = first_request(session).strip().split("\n")
    short = lines[0] if len(lines[0]) <= _TASK_LENGTH else f"{lines[0][:_TASK_LENGTH]}..."
    return {
        "id": session.folder.name,
        "began": session.about.get("time", 0.0),
        "folder": str(session.about.get("folder", "")),
        "model": str(session.about.get("model", "")),
        "task": short,
        "requests": session.requests,
        "turns": session.turns,
        "state": "at work" if being_written(session.folder) else session.stop or "interrupted",
        "consent": session.consent,
        "bytes": sum(file.stat().st_size for file in session.folder.rglob("*") if file.is_file()),
    }


def _period(seconds: float) -> str:
    size, name = next(((size, name) for size, name in _UNITS if seconds >= size), _UNITS[-1])
    return count(int(seconds // size), name)
