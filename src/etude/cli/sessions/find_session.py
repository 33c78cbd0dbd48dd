"""Finds the session that a user names."""

from __future__ import annotations

from pathlib import Path

from etude.cli.agent_setup import LAST, default_sessions
from etude.harness.sessions import SessionError, list_sessions
from etude.harness.sessions.record import LOG


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
