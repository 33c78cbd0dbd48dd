"""What a folder says of its agent: every state, from files alone; and how agents are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from etude.harness import Conversation, Message, Role, Turn
from etude.harness.background import (
    LOCK,
    Change,
    Ended,
    Order,
    Queue,
    find_agent,
    read_agent,
    read_all_agents,
    take_lock,
    write_ended,
    write_order,
)
from etude.harness.sessions import SessionError, SessionRecord
from etude.harness.workspaces.workspace import TOO_LARGE
from etude.trace import TraceUsage


def made(sessions: Path, id: str, name: str = "", prompts: tuple[str, ...] = ("do it",), begun: float = 1.0) -> Path:
    place = sessions / f"20260101-000000-{id}"
    place.mkdir(parents=True)
    folder = sessions.parent
    order = Order(id=id, name=name, folder=folder, model="m", prompts=prompts, at_once=1, begun=begun)
    write_order(place, order)
    return place


def worked(place: Path, stop: str, files: dict[str, tuple[bytes | None, bytes | None]]) -> SessionRecord:
    """A session of one request and one turn."""
    record = SessionRecord.begin(place, profile="full")
    record.opened(Conversation("chat", [Message(Role.USER, "do it")], "do it"))
    record.turned(Turn("said"), [], [], TraceUsage(turns=1), files, {})
    if stop:
        record.stopped(stop, "")
    return record


def state(place: Path) -> str:
    return read_agent(place).state.value


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("replied", "done"),
        ("finished", "done"),
        ("turns", "done"),
        ("cancelled", "stopped"),
        ("error", "failed"),
        ("wall_clock", "failed"),
        ("", "interrupted"),
    ],
)
def test_what_a_session_says_counts_where_its_process_said_nothing(tmp_path: Path, stop: str, expected: str) -> None:
    place = made(tmp_path / "s", "aaaaaa")
    assert state(place) == "interrupted", "it never began"
    worked(place, stop, {}).close()
    assert state(place) == expected
    write_ended(place, Ended(stop="error", error="the box would not close"))
    assert state(place) == "failed"


def test_alive_is_who_holds_the_lock(tmp_path: Path) -> None:
    first, second = made(tmp_path / "s", "aaaaaa"), made(tmp_path / "s", "bbbbbb")
    locks = [take_lock(place / LOCK) for place in (first, second)]
    for place in (first, second):
        Queue(place.parent).draw(place.name)
    assert [state(first), state(second)] == ["running", "queued"]
    assert read_agent(second).ahead == 1
    for lock in locks:
        assert lock is not None
        os.close(lock)
    assert [state(first), state(second)] == ["interrupted", "interrupted"]


def test_decisions_last_until_the_next_request(tmp_path: Path) -> None:
    place = made(tmp_path / "s", "aaaaaa")
    files = {"a": (b"1\n", b"2\n"), "b": (None, b"1\n2\n"), "huge": (None, TOO_LARGE)}
    record = worked(place, "replied", files)
    assert read_agent(place).change() == Change(2, 3, 1)
    record.signal("edits_rejected", files=["a", "b"])
    assert state(place) == "rejected"
    record.signal("edits_accepted", files=["a"], added=1, removed=1)
    assert state(place) == "partly applied"
    assert read_agent(place).changes == {"b": (None, b"1\n2\n")}
    record.signal("edits_accepted", files=["b"], added=2, removed=0)
    assert state(place) == "applied"
    assert read_agent(place).change() == Change(2, 3, 1), "what was applied"
    record.asked(Message(Role.USER, "more"))
    record.close()
    assert state(place) == "interrupted"


def test_a_request_that_the_session_does_not_know_is_still_to_be_asked(tmp_path: Path) -> None:
    place = made(tmp_path / "s", "aaaaaa", prompts=("do it", "more"))
    assert read_agent(place).pending == ("do it", "more")
    record = worked(place, "replied", {"a": (b"1\n", b"2\n")})
    record.signal("edits_accepted", files=["a"])
    record.close()
    assert read_agent(place).pending == ("more",)
    assert state(place) == "interrupted"


def test_a_session_killed_in_its_first_line_has_not_begun(tmp_path: Path) -> None:
    place = made(tmp_path / "s", "aaaaaa")
    (place / "session.jsonl").write_bytes(b'{"time":1,"kind":"sess')
    assert read_agent(place).session is None
    assert state(place) == "interrupted"


def test_names_ids_and_beginnings(tmp_path: Path) -> None:
    sessions = tmp_path / "s"
    one, two = made(sessions, "abc123", "docs"), made(sessions, "abd456", "abc")
    assert find_agent(sessions, "docs") == one
    assert find_agent(sessions, "abc") == two, "a whole name before a beginning"
    assert find_agent(sessions, "abc1") == find_agent(sessions, one.name) == one
    with pytest.raises(SessionError, match="'ab' may be any of abc123, abd456: give more digits of the id"):
        find_agent(sessions, "ab")
    with pytest.raises(SessionError, match=r"there is no agent 'do' in .*: is it docs\?"):
        find_agent(sessions, "do")
    for nobody in ("x", ""):
        with pytest.raises(SessionError, match="there is no agent"):
            find_agent(sessions, nobody)


def test_one_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    sessions = tmp_path / "s"
    broken = made(sessions, "aaaaaa")
    made(sessions, "bbbbbb", begun=1.0)
    made(sessions, "cccccc", begun=2.0)
    (broken / "agent.json").write_text('{"id": 1}')
    found, problems = read_all_agents(sessions)
    assert [agent.order.id for agent in found] == ["cccccc", "bbbbbb"], "the newest first"
    assert len(problems) == 1
    assert "agent.json is not what this version of etude writes" in problems[0]
    assert find_agent(sessions, "bb").name.endswith("bbbbbb")
