"""Sessions on disk: whole, private, and gone on with from whatever a kill left."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.parts import SAMPLE, repository

from etude.harness import (
    ApplyConflict,
    ChatSession,
    Conversation,
    Message,
    Role,
    ScriptedPolicy,
    Turn,
    load_profile,
)
from etude.harness.sessions import SessionError, SessionRecord, list_sessions, load_session
from etude.harness.sessions.record import LOG
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.trace.conversation.openai_messages import whole_chain

FULL = load_profile("full")
BOX = SandboxRecipe.model_validate({})
REQUEST = "make check pass"
TRIGGER = ScriptedPolicy([], FULL).tokens(FULL.open(REQUEST)) + 60
"""Of a summary, after some turns."""
HARNESS = HarnessRecipe.model_validate(
    {"profile": "full", "summary_trigger": TRIGGER, "max_turns": 30, "max_tokens": 5000, "max_output_tokens": 400}
)
STEPS = (
    "> list",
    "let me see\n> read calc.py\n> read check.py",
    "> todo > repair calc.py",
    "> edit calc.py 3 return max(a, b)\n> edit pack/other.py 1 value = 2",
    "> fly away",
    "> edit calc.py three",
    "> delete pack/other.py\n> read calc.py",
    "> read check.py",
    "> grep larger",
    "> edit calc.py 3 return a if a > b else b",
    "it is done",
)


class Following:
    """What it does depends on what the conversation shows alone, as a model's doing does. It counts its own turns."""

    def __init__(self, steps: Sequence[str] = STEPS, pause: float = 0.0) -> None:
        self._steps, self._pause = steps, pause
        self._words = ScriptedPolicy([], FULL)
        self.name = "following"

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        await asyncio.sleep(self._pause)
        if conversation.messages[-1].text == FULL.summary_request:
            return Turn("so far so good")
        chain, done = [conversation], 0
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        for link in chain:
            turns = [place for place, message in enumerate(link.messages) if message.role is Role.ASSISTANT]
            # The last of an older context is its summary.
            turns = turns if link is conversation else turns[:-1]
            done += sum(self.counts(link.messages, place) for place in turns)
        return await ScriptedPolicy([self._steps[done]], FULL).act(conversation, max_tokens=max_tokens)

    def counts(self, messages: Sequence[Message], place: int) -> bool:
        return True

    def tokens(self, conversation: Conversation) -> int:
        return self._words.tokens(conversation)

    def count(self, text: str) -> int:
        return self._words.count(text)


def as_it_was(session: ChatSession) -> tuple[object, str]:
    assert session.conversation is not None
    messages = [{**m, "tool_calls": None, "tool_call_id": None} for m in whole_chain(session.conversation)]
    return messages, asyncio.run(session.diff())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, object]:
    """A session that nothing interrupted: its repository, its folder, and how it ended."""
    folder = repository(tmp_path_factory.mktemp("repository"))
    place = tmp_path_factory.mktemp("sessions") / "whole"

    async def play() -> ChatSession:
        session = ChatSession(folder, Following(), HARNESS, BOX, record=SessionRecord.begin(place, profile="full"))
        outcome = await session.run(REQUEST)
        assert outcome.stop == "replied", outcome.error
        assert 1 <= outcome.usage.summaries < len(STEPS)
        return session

    return folder, place, as_it_was(asyncio.run(play()))


def test_what_is_read_back_is_what_happened(whole: tuple[Path, Path, object]) -> None:
    folder, place, ended = whole
    saved = load_session(place)
    assert (saved.about["profile"], saved.stop, saved.state["todo"]) == ("full", "replied", ["> repair calc.py"])
    assert saved.usage.invalid_calls == 2
    assert (place.stat().st_mode | (place / LOG).stat().st_mode) & 0o077 == 0
    assert {path: now for path, (_, now) in saved.changed().items()} == {
        "calc.py": SAMPLE["calc.py"].replace(b"min(a, b)", b"a if a > b else b"),
        "pack/other.py": None,
    }
    again = ChatSession(folder, Following(), HARNESS, BOX, saved=load_session(place))
    assert not again.interrupted
    assert as_it_was(again) == ended


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.floats(0, 1))
def test_cut_off_anywhere_it_goes_on_to_the_same_end(
    whole: tuple[Path, Path, object], tmp_path_factory: pytest.TempPathFactory, kept: float
) -> None:
    folder, place, ended = whole
    cut = tmp_path_factory.mktemp("cut") / "session"
    shutil.copytree(place, cut)
    log = (cut / LOG).read_bytes()
    (cut / LOG).write_bytes(log[: int(kept * len(log))])
    try:
        saved = load_session(cut)
    except SessionError as error:
        assert "empty" in str(error)  # noqa: PT017 - either way is right, by where it was cut
        return
    session = ChatSession(folder, Following(), HARNESS, BOX, saved=saved)
    if session.conversation is None:
        asyncio.run(session.run(REQUEST))
    elif session.interrupted and session.conversation.messages[-1].role is not Role.ASSISTANT:
        asyncio.run(session.resume())
    if session.conversation is not None and session.conversation.messages[-1].text == "it is done":
        assert as_it_was(session) == ended
    assert load_session(cut).conversation is not None


def test_the_users_own_changes_meanwhile_stop_it(whole: tuple[Path, Path, object], tmp_path: Path) -> None:
    _, place, _ = whole
    shutil.copytree(place, tmp_path / "session")
    mine = repository(tmp_path / "mine")
    (mine / "calc.py").write_text("mine\n")
    session = ChatSession(mine, Following(), HARNESS, BOX, saved=load_session(tmp_path / "session"))
    with pytest.raises(ApplyConflict, match=r"began: calc\.py; restore them"):
        asyncio.run(session.diff())


def test_a_line_that_the_disk_took_in_part_is_cut_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = SessionRecord.begin(tmp_path / "one", profile="full")
    writing = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda handle, data: writing(handle, data[: len(data) // 2]))
        with pytest.raises(SessionError, match="the disk is full"):
            record.signal("follow_up")
    record.signal("follow_up")
    record.close()
    assert (tmp_path / "one" / LOG).read_bytes().count(b"\n") == 2
    assert load_session(tmp_path / "one")


def test_sessions_are_listed_newest_first_and_damage_is_named(tmp_path: Path) -> None:
    for place, name in enumerate(("one", "two")):
        SessionRecord.begin(tmp_path / name, profile="full").close()
        os.utime(tmp_path / name / LOG, (place, place))
    assert [path.name for path in list_sessions(tmp_path)] == ["two", "one"]
    with pytest.raises(SessionError, match="already contains a session"):
        SessionRecord.begin(tmp_path / "one")
    with (tmp_path / "one" / LOG).open("a") as log:
        log.write("nonsense\n")
    with pytest.raises(SessionError, match="line 2"):
        load_session(tmp_path / "one")
    (tmp_path / "two" / LOG).write_text('{"kind": "session", "format": "etude-session/9"}\n')
    with pytest.raises(SessionError, match="etude-session/9"):
        load_session(tmp_path / "two")
    with pytest.raises(SessionError, match="not a session"):
        load_session(tmp_path / "three")
