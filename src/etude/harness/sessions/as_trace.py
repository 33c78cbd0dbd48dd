"""Converts a session to a trace, for exports, and for training if the user agreed to it.

Invariant: the trace's segments are the recorded token ids of complete turns, never re-encoded from text. A session
whose policy recorded no token ids has no segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etude.harness.context.profile import load_profile
from etude.harness.editing.diff import binary_changes, unified_diff
from etude.harness.schema import SchemaError
from etude.harness.sessions.replay import SavedSession
from etude.trace.conversation.messages import Role
from etude.trace.conversation.openai_messages import chain_of, whole_chain
from etude.trace.steps import read_steps
from etude.trace.trace import Segment, StopCause, Trace


def as_trace(session: SavedSession) -> Trace:
    """Convert a session to a trace. The trace's `task` is the first line of the user's first request, and its `split`
    is empty."""
    conversation = session.conversation
    return Trace(
        id=session.folder.name,
        task=first_request(session).strip().split("\n", 1)[0],
        split="",
        group="",
        member=0,
        policy=str(session.about.get("model", "")),
        seed=0,
        segments=_segments(session),
        tools=list(session.tools),
        usage=session.total(),
        stop=StopCause(session.stop) if session.stop else StopCause.CANCELLED,
        error=session.error,
        started=float(session.about.get("time", 0.0)),
        timing=dict(session.seconds),
        diff="".join(_changes(session)),
        messages=whole_chain(conversation) if conversation is not None else [],
    )


def first_request(session: SavedSession) -> str:
    said = chain_of(session.conversation)[0].messages if session.conversation is not None else []
    return next((message.text for message in said if message.role is Role.USER), "")


def tool_schemas(session: SavedSession) -> list[dict[str, Any]]:
    """Return the agent's tools in OpenAI's schema; none if the session's profile is unknown."""
    name = session.about.get("profile")
    try:
        return [schema.openai() for schema in load_profile(str(name)).schemas()] if name else []
    except SchemaError:
        return []  # this version has no such profile


def _segments(session: SavedSession) -> list[Segment]:
    if not session.steps or not session.tokens.exists():
        return []
    return read_steps(session.tokens, keep=session.steps)[0]


def _changes(session: SavedSession) -> Iterator[str]:
    """Yield a diff for each time that the user accepted changes, then one of the changes not accepted yet."""
    for signal in session.signals:
        if signal["what"] == "edits_accepted":
            yield _diff(session, {path: (c["before"], c["now"]) for path, c in signal.get("changes", {}).items()})
    yield _diff(session, session.files)


def _diff(session: SavedSession, sides: Mapping[str, tuple[str | None, str | None]]) -> str:
    before, now = (
        {path: data for path, both in sides.items() if (data := session.content(both[side])) is not None}
        for side in (0, 1)
    )
    return unified_diff(before, now) + binary_changes(before, now)
