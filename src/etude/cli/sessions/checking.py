"""etude sessions check: counts how many lines of the edits that a user accepted are still in the user's files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from etude.cli.agent_setup import default_sessions
from etude.cli.errors import FAILED
from etude.cli.visible import visible
from etude.harness.sessions import SessionError, list_sessions, load_session, record_kept_lines, sessions_of

_UNITS = ((604_800, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"))


def check_command(place: Path | None, folder: Path | None, as_json: bool) -> int:
    where = place or default_sessions()
    failed, rows = False, []
    for session in list(sessions_of(where, folder) if folder is not None else list_sessions(where)):
        try:
            rows += [{"session": session.name, **signal} for signal in record_kept_lines(load_session(session))]
        except SessionError as error:
            failed = True
            print(visible(str(error)), file=sys.stderr)
    if as_json:
        print(json.dumps(rows))
    for row in [] if as_json else rows:
        print(f"{row['session']}: {row['lines_kept']} of {row['lines_added']} lines stand {_after(row)}")
    if not rows and not as_json:
        print("nothing is due", file=sys.stderr)
    return FAILED if failed else 0


def _after(row: dict[str, object]) -> str:
    seconds, looked = int(str(row["after_seconds"])), float(str(row["looked_after_seconds"]))
    return f"after {_time(seconds)} (looked after {_time(looked)})"


def _time(seconds: float) -> str:
    size, name = next(((size, name) for size, name in _UNITS if seconds >= size), (1, "second"))
    count = int(seconds // size)
    return f"{count} {name}{'' if count == 1 else 's'}"
