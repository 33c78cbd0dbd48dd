"""Saved sessions: written to disk turn by turn, and read back to be resumed after the last complete turn."""

from etude.harness.sessions.as_trace import as_trace, tool_schemas
from etude.harness.sessions.kept_lines import record_all_kept_lines, record_kept_lines
from etude.harness.sessions.record import FORMAT, SessionError, SessionRecord, being_written
from etude.harness.sessions.replay import SavedSession, list_sessions, load_session, sessions_of

__all__ = [
    "FORMAT",
    "SavedSession",
    "SessionError",
    "SessionRecord",
    "as_trace",
    "being_written",
    "list_sessions",
    "load_session",
    "record_all_kept_lines",
    "record_kept_lines",
    "sessions_of",
    "tool_schemas",
]
