"""Sessions on disk: written turn by turn, read back whole.

A session that was killed goes on after its last whole turn."""

from etude.harness.sessions.record import FORMAT, SessionError, SessionRecord
from etude.harness.sessions.replay import SavedSession, list_sessions, load_session

__all__ = ["FORMAT", "SavedSession", "SessionError", "SessionRecord", "list_sessions", "load_session"]
