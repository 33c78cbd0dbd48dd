"""etude sessions consent: records whether a session may be trained on."""

from __future__ import annotations

from pathlib import Path

from etude.cli.sessions.find_session import place_of
from etude.harness.sessions import SessionError, SessionRecord, load_session

_ANSWERS = {"yes": True, "no": False}


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
