"""etude sessions list: prints an entry per session."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from etude.cli.agent_setup import default_sessions
from etude.cli.errors import FAILED
from etude.cli.outcome import count
from etude.cli.visible import visible
from etude.harness.sessions import SavedSession, SessionError, being_written, list_sessions, load_session, sessions_of
from etude.harness.sessions.as_trace import first_request

_TASK_LENGTH = 60


def list_command(place: Path | None, folder: Path | None, as_json: bool) -> int:
    where = place or default_sessions()
    found = sessions_of(where, folder) if folder is not None else list_sessions(where)
    rows, failed = [], False
    for session in found:
        try:
            rows.append(_row(load_session(session)))
        except SessionError as error:
            failed = True
            print(visible(str(error)), file=sys.stderr)
    if as_json:
        print(json.dumps(rows))
    elif not rows:
        print(f"no sessions in {where}", file=sys.stderr)
    for row in [] if as_json else rows:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["began"]))
        told = f"{row['state']}, {count(row['turns'], 'turn')}, {row['bytes'] / 1000:.0f} kB"
        print(visible(f"{row['id']}  {when}  {row['model']}  {told}\n    {row['folder']}\n    {row['task']}"))
    return FAILED if failed else 0


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
